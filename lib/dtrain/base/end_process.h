// Ends a program that has loaded LibTorch.
#pragma once

namespace dtrain::base {

/// Ends the process with `status`, once what was printed is written. Destructors of static objects
/// do not run: LibTorch's take 80 ms, a quarter of a short run, to free what the system frees at
/// once. Where a sanitizer is to look for leaks they do run.
[[noreturn]] void end_process(int status);

}  // namespace dtrain::base
