"""HTML reports of audits: one self-contained file each, with inline styles and plots."""
