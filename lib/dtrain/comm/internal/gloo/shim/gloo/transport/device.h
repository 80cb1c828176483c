// Stub of gloo's header of the same name: types that c10d uses only by pointer.
#pragma once
#include <memory>
namespace gloo::transport {
class Device;
class UnboundBuffer;
}  // namespace gloo::transport
