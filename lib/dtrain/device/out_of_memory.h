// Says where a device has run out of memory, and what helps.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <string>

namespace dtrain::device {

/// Runs `work`. part: the place in a program that a message names, "in the forward pass of block
/// 3".
///
/// Throws:  Error{memory} where the device is full: what was wanted and is held, and what helps.
///          Else what `work` throws.
/// Threads: any.
void run_on(c10::Device device, const std::function<std::string()>& part,
            const std::function<void()>& work);

}  // namespace dtrain::device
