// Device out-of-memory errors that name the failed computation, e.g. a block's forward pass.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <functional>
#include <string>

#include "dtrain/base/error.h"

namespace dtrain::device {

/// Error{memory}: a tensor does not fit in device memory. Contains no advice: callers that know the
/// settings append it.
class DeviceOutOfMemory : public base::Error {
 public:
  /// part: as in with_oom_context; empty if unknown.
  DeviceOutOfMemory(c10::Device device, const std::string& part,
                    const c10::OutOfMemoryError& error);
};

/// Runs `work` and turns its out-of-memory errors into DeviceOutOfMemory. part: describes `work` for
/// the message, "in the forward pass of block 3".
///
/// Throws:  DeviceOutOfMemory naming the part, the requested size and the memory in use; otherwise
///          what `work` throws.
/// Threads: any.
void with_oom_context(c10::Device device, const std::function<std::string()>& part,
                      const std::function<void()>& work);

}  // namespace dtrain::device
