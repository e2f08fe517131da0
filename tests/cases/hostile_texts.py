"""Texts that a model, a file name or a log may hold, and that must stay texts on a page."""

MARK = "charterXSS"
"""A page on which one of them ran has a property of this name."""
RUN = f"window.{MARK}=1"
HOSTILE = (
    f"<script>{RUN}</script>",
    f"</script><script>{RUN}</script>",
    f"</title><script>{RUN}</script>",
    f"</textarea></style></noscript><script>{RUN}</script>",
    f"<img src=x onerror={RUN}>",
    f"<svg/onload={RUN}>",
    f"<svg><animate onbegin={RUN} attributeName=x dur=1s>",
    f"<details open ontoggle={RUN}>",
    f"<iframe srcdoc='<script>parent.{MARK}=1</script>'>",
    f'"><script>{RUN}</script>',
    f"' onmouseover='{RUN}",
    f'" autofocus onfocus="{RUN}" x="',
    f"javascript:{RUN}",
    f"data:text/html,<script>{RUN}</script>",
    f"<a href='javascript:{RUN}'>look</a>",
    f"<math><mtext><table><mglyph><style><img src=x onerror={RUN}>",
    f"<!--><script>{RUN}</script>-->",
    f"<![CDATA[><script>{RUN}</script>]]>",
    f"\u2028<script>{RUN}</script>\u2029",
    f"{{{{constructor.constructor('{RUN}')()}}}}",
    f"{{{{7*7}}}}{{% for x in ().__class__.__base__.__subclasses__() %}}{RUN}{{% endfor %}}",
    f"${{{RUN}}}",
    f"\x00<scr\x00ipt>{RUN}</script>",
    f"\ufeff<script>{RUN}</script>",
    f"&lt;script&gt;{RUN}&lt;/script&gt;",
    f"<object data=javascript:{RUN}>",
    f"<base href='javascript:{RUN}//'>",
    f"<meta http-equiv=refresh content='0;url=javascript:{RUN}'>",
    f"<form action=javascript:{RUN}><button autofocus>",
    f"\x1b]8;;javascript:{RUN}\x07link\x1b]8;;\x07",
    "<style>@import 'http://127.0.0.1:9/x';*{display:none}</style>",
    "<link rel=stylesheet href=http://127.0.0.1:9/x>",
)
