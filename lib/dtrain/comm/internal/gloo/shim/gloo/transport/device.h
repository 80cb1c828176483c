// Names that c10d's headers mention only by pointer.
#pragma once
#include <memory>
namespace gloo::transport {
class Device;
class UnboundBuffer;
}  // namespace gloo::transport
