// The part of gloo's header of this name that c10d's headers want: the wheel ships none of gloo's.
#pragma once
#include <chrono>
namespace gloo {
struct Context {
  void setTimeout(std::chrono::milliseconds);
  std::chrono::milliseconds getTimeout() const;
};
}  // namespace gloo
