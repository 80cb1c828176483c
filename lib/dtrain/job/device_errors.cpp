#include "dtrain/job/device_errors.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <fmt/ranges.h>

#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/config/layout.h"
#include "dtrain/device/out_of_memory.h"
#include "dtrain/device/plugin.h"
#include "dtrain/metrics/format.h"
#include "dtrain/metrics/tensor_memory.h"

namespace dtrain::job {
namespace {

using base::ErrorKind;

c10::Device current_device(const config::DeviceName& name) {
  return c10::impl::VirtualGuardImpl(device::plugin(name.kind).type()).getDevice();
}

// Only the device's kind where even that question fails.
std::string text_of_current(const config::DeviceName& name) {
  try {
    return current_device(name).str();
  } catch (const c10::Error&) {
    return name.text();
  }
}

std::string first_line(const c10::Error& error) {
  const std::string text = error.what_without_backtrace();
  return text.substr(0, text.find('\n'));
}

[[noreturn]] void fail(const config::DeviceName& name, const DeviceAdvice& advice,
                       const c10::AcceleratorError& error) {
  const std::string device = text_of_current(name);
  const std::string text = first_line(error);
  switch (device::plugin(name.kind).failure_of(error.get_error_code())) {
    case device::Failure::device_lost:
      base::fail(ErrorKind::device, "device {} was lost: {}; {}", device, text, advice.if_lost);
    case device::Failure::out_of_memory:
      base::fail(ErrorKind::memory, "out of memory on {}: {}; {}", device, text, advice.if_full);
    case device::Failure::other:
      break;
  }
  base::fail(ErrorKind::internal, "device {} failed: {}", device, text);
}

[[noreturn]] void fail(const config::DeviceName& name, const DeviceAdvice& advice,
                       const device::DeviceFull& error) {
  const std::int64_t peak = metrics::memory_use(current_device(name)).peak;
  base::fail(ErrorKind::memory, "{} Tensors took {} at the most; {}", error.what(),
             metrics::format_bytes(peak), advice.if_full);
}

}  // namespace

DeviceAdvice advice_for(const config::Config& config) {
  const config::MachineConfig& machine = config.machine;
  std::vector<std::string> help;
  if (machine.recompute.kind == config::RecomputeSetting::Kind::none) {
    help.emplace_back("--recompute level");
  }
  if (config.batch.microbatch > 1) {
    help.emplace_back("a smaller --microbatch (more --grad-accum makes up for it)");
  }
  help.emplace_back("a smaller --seq-len or model");
  if (machine.compile) {
    help.emplace_back("no --compile");
  } else if (machine.offload.kind != config::Offload::Kind::all) {
    help.emplace_back("--offload all");
  }
  const bool is_shared = config::sharding_of(config.layout) == config::Sharding::parameters;
  help.emplace_back(is_shared ? "more ranks" : "ranks that share the model (--strategy fsdp)");
  if (machine.memory_limit.count > 0) help.emplace_back("a larger --memory-limit");
  return {.if_full = fmt::format("use {}", fmt::join(help, ", or ")),
          .if_lost = "check it and start again; --resume auto goes on from the last checkpoint"};
}

void report_device_errors(const config::DeviceName& name, const DeviceAdvice& advice,
                          const std::function<void()>& work) {
  if (name.is_cpu()) return work();
  try {
    work();
  } catch (const c10::AcceleratorError& error) {
    fail(name, advice, error);
  } catch (const c10::OutOfMemoryError& error) {
    fail(name, advice, device::DeviceFull(current_device(name), /*part=*/"", error));
  } catch (const device::DeviceFull& error) {
    fail(name, advice, error);
  }
}

}  // namespace dtrain::job
