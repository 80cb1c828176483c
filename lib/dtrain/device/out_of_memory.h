// Says where a device has run out of memory.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <functional>
#include <string>

#include "dtrain/base/error.h"

namespace dtrain::device {

/// Error{memory}: a device has no room for a tensor. What helps is for the caller to add, who knows
/// the settings.
class DeviceFull : public base::Error {
 public:
  /// part: as of run_on; empty: not known.
  DeviceFull(c10::Device device, const std::string& part, const c10::OutOfMemoryError& error);
};

/// Runs `work`. part: the place in a program that a message names, "in the forward pass of block
/// 3".
///
/// Throws:  DeviceFull naming the part, and what was wanted and is held. Else what `work` throws.
/// Threads: any.
void run_on(c10::Device device, const std::function<std::string()>& part,
            const std::function<void()>& work);

}  // namespace dtrain::device
