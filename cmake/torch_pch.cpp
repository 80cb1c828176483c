// Owns the precompiled header torch_pch.h; empty on purpose.
