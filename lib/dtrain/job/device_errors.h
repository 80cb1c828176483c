// Says what errors of a device mean, and what to do.
#pragma once

#include <functional>
#include <string>

#include "dtrain/config/config.h"

namespace dtrain::job {

/// What to do about a device, as the end of a message.
struct DeviceAdvice {
  std::string if_full;
  std::string if_lost;
};

/// For a rank: settings that help and are not in use.
[[nodiscard]] DeviceAdvice advice_for(const config::Config& config);

/// Runs `work`, which computes on the device of this name.
///
/// Throws:  where the device fails, naming it: Error{device} if it was lost, Error{memory} if it is
///          full, else Error{internal}. Else what `work` throws.
/// Threads: any.
void report_device_errors(const config::DeviceName& name, const DeviceAdvice& advice,
                          const std::function<void()>& work);

}  // namespace dtrain::job
