"use strict";
/* Before anything is painted: the theme that was chosen here, if one was. */
(function () {
  let chosen = null;
  try { chosen = localStorage.getItem("charter-theme"); } catch { /* storage may be closed */ }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
