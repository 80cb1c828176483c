// Stub of gloo's header of the same name, reduced to what c10d uses. The LibTorch wheel ships no
// gloo headers.
#pragma once
#include <chrono>
namespace gloo {
struct Context {
  void setTimeout(std::chrono::milliseconds);
  std::chrono::milliseconds getTimeout() const;
};
}  // namespace gloo
