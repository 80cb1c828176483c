// Stub of gloo's header of the same name, which c10d includes but does not need.
#pragma once
