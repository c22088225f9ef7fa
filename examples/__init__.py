"""Small programs that use Holdfast."""
