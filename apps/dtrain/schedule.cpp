#include "dtrain/parallel/pipeline/schedule.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <optional>

#include "commands.h"
#include "dtrain/base/error.h"
#include "dtrain/config/assign.h"
#include "dtrain/config/pipeline.h"
#include "dtrain/parallel/pipeline/check.h"
#include "dtrain/parallel/pipeline/simulate.h"
#include "fitted_text.h"
#include "help.h"
#include "parse_words.h"
#include "schedule_grid.h"

namespace dtrain::app {
namespace {

using base::ErrorKind;
using base::fail;

// Beyond this a picture is nothing that anybody reads.
constexpr std::int64_t kMaxForwards = 1 << 17;

struct ScheduleOptions {
  std::string schedule = "1f1b";
  std::optional<std::int64_t> stages;
  std::optional<std::int64_t> microbatches;
  bool help = false;
};

ScheduleOptions parse(const Arguments& arguments) {
  ScheduleOptions options;
  CLI::App app;
  app.set_help_flag();
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.add_flag("-h,--help", options.help);
  app.add_option("--schedule-pp", options.schedule);
  add_count(app, "--pp", [&](std::int64_t count) { options.stages = count; });
  add_count(app, "--microbatches", [&](std::int64_t count) { options.microbatches = count; });
  parse_words(app, arguments, "schedule", "dtrain schedule --help");
  return options;
}

std::int64_t require_count(std::string_view flag, std::optional<std::int64_t> value) {
  if (!value) fail(ErrorKind::usage, "schedule: {} is missing: give a number", flag);
  if (*value < 1 || *value > kMaxForwards) {
    fail(ErrorKind::usage, "schedule: {}: found {}, but it must be 1 to {}", flag, *value,
         kMaxForwards);
  }
  return *value;
}

parallel::PipelineShape shape_of(const ScheduleOptions& options) {
  config::Config config;
  config::assign_text(*config::find_key("layout.schedule_pp"), options.schedule, "--schedule-pp",
                      config);
  const config::PipelineSetting& setting = config.layout.schedule_pp;
  const std::int64_t stages = require_count("--pp", options.stages);
  const std::int64_t microbatches = require_count("--microbatches", options.microbatches);
  config::require_schedule_fits(setting, {.stages = stages, .microbatches = microbatches},
                                "--microbatches");
  if (setting.chunks > kMaxForwards / stages / microbatches) {
    fail(ErrorKind::usage,
         "schedule: {} stages with {} chunks and {} microbatches are more than {} forwards: lower "
         "--pp or --microbatches",
         stages, setting.chunks, microbatches, kMaxForwards);
  }
  return {.stages = stages, .microbatches = microbatches, .order = setting};
}

// The activations of a chunk count as its part of a microbatch.
std::string memory_line(const parallel::PipelineShape& shape,
                        const std::vector<parallel::InFlight>& kept) {
  std::string counts;
  for (const parallel::InFlight& stage : kept) {
    const double microbatches =
        static_cast<double>(stage.activations) / static_cast<double>(shape.chunks());
    counts += fmt::format(" {:.4g}", microbatches);
  }
  return fmt::format("microbatches in flight, by stage:{}\n", counts);
}

}  // namespace

int run_schedule(const Arguments& arguments) {
  const ScheduleOptions options = parse(arguments);
  if (options.help) {
    print_help(schedule_help());
    return 0;
  }
  const parallel::PipelineShape shape = shape_of(options);
  const auto schedules = parallel::make_pipeline_schedule(shape);
  const auto kept = parallel::check_pipeline_schedule(shape, schedules);
  const parallel::Simulation simulation = parallel::simulate(shape, schedules);
  print(schedule_grid(shape, simulation));
  print(fmt::format("bubble: {:.4g} (time without work over time at work, mean of the stages)\n",
                    simulation.bubble));
  print(memory_line(shape, kept));
  return 0;
}

}  // namespace dtrain::app
