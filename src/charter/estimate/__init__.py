"""What one configuration needs: parameters, flops, bytes, seconds."""
