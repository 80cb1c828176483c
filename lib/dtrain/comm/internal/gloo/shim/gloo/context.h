// Stub of the gloo header of this name, as far as c10d needs it: the wheel ships no gloo headers.
#pragma once
#include <chrono>
namespace gloo {
struct Context {
  void setTimeout(std::chrono::milliseconds);
  std::chrono::milliseconds getTimeout() const;
};
}  // namespace gloo
