#include "dtrain/runtime.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/host/process.h"
#include "dtrain/base/log.h"
#include "dtrain/commands/commands.h"
#include "dtrain/config/saved_run.h"
#include "dtrain/config/values/layout.h"
#include "dtrain/metrics/tensor_memory.h"

namespace dtrain {
namespace {

// Thrown when the reader of standard output has gone, as behind `| head`.
struct BrokenPipe {};

void write_output(std::string_view text) { (void)base::print(text); }

// LibTorch has one thread pool for the process and one per rank; each rank also has helpers for fused
// kernels (kernels/tasks.h), a thread that prefetches data and one for the launcher.
void require_threads(const config::Config& config) {
  const bool is_local = config::strategy_of(config.layout).is_local();
  const std::int64_t ranks = is_local ? config.layout.local_ranks : 1;
  const std::int64_t threads = config.machine.threads;
  base::require_threads(threads + ranks * (threads + std::max<std::int64_t>(0, threads - 1) + 2));
}

// Generates a text; on a terminal it ends with a newline, for the shell's prompt.
void generate(const config::Config& config) {
  char last = '\n';
  try {
    commands::generate(config, [&last](std::string_view text) {
      if (!base::print(text)) throw BrokenPipe();
      if (!text.empty()) last = text.back();
    });
  } catch (const BrokenPipe&) {  // the text read so far is enough
    return;
  }
  if (last != '\n' && ::isatty(STDOUT_FILENO) == 1) write_output("\n");
}

int run(std::string_view text) {
  base::report_unhandled_exceptions();
  base::count_suspensions();
  const config::Request request = config::from_request(text);
  require_threads(request.config);
  metrics::install_counting_allocator();
  // 0 for plan, which sets the number for each layout.
  at::set_num_threads(static_cast<int>(std::max<std::int64_t>(1, request.config.machine.threads)));
  // Not setFloat32MatmulPrecision, which would also change the CPU's products.
  at::globalContext().setAllowTF32CuBLAS(request.config.machine.matmul_precision ==
                                         config::MatmulPrecision::tf32);
  // By default cuBLAS may add partial sums of 16-bit products in 16 bits.
  at::globalContext().setAllowBF16ReductionCuBLAS(false);
  at::globalContext().setAllowFP16ReductionCuBLAS(false);
  switch (request.command) {
    case config::Command::train:
      return commands::train(request.config, request.record);
    case config::Command::generate:
      generate(request.config);
      return 0;
    case config::Command::evaluate:
      commands::evaluate(request.config, write_output);
      return 0;
    case config::Command::verify:
      commands::verify(request.config, write_output);
      return 0;
    case config::Command::doctor:
      commands::run_doctor(request.config, request.record, write_output);
      return 0;
    case config::Command::plan:
      commands::plan_layouts(request.config, write_output);
      return 0;
    case config::Command::export_checkpoint:
      commands::export_checkpoint(request.config, write_output);
      return 0;
    case config::Command::import_checkpoint:
      commands::import_checkpoint(request.config, write_output);
      return 0;
  }
  return 0;
}

// Reports an error of LibTorch; device errors are reported where the device is known.
int report(const c10::Error& error) {
  using base::ErrorKind;
  const bool is_memory = dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr;
  const std::string text = error.what_without_backtrace();
  return base::report_error(is_memory ? ErrorKind::memory : ErrorKind::internal,
                            is_memory ? text.substr(0, text.find('\n')) : "unexpected: " + text,
                            base::ErrorScope::own);
}

}  // namespace
}  // namespace dtrain

int dtrain_run(const char* resolved_config) {
  try {
    return dtrain::run(resolved_config);
  } catch (const c10::Error& error) {
    return dtrain::report(error);
  } catch (...) {
    return dtrain::base::report_current_exception();
  }
}
