"""One module per dashboard, each with one public function that makes it."""
