// dtrain schedule: prints the timeline of a pipeline schedule.
#include "dtrain/parallel/pipeline/schedule.h"

#include <fmt/format.h>

#include <cmath>

#include "dtrain/base/error.h"
#include "dtrain/config/input/assign.h"
#include "dtrain/config/values/layout.h"
#include "dtrain/parallel/pipeline/check.h"
#include "tool.h"

namespace dtrain::app {
namespace {

using base::ErrorKind;
using base::fail;

// The largest timeline that is printed.
constexpr std::int64_t kMaxForwards = 1 << 17;

struct ScheduleOptions {
  std::string schedule = "1f1b";
  std::int64_t stages = 0;
  std::int64_t microbatches = 0;
};

void add_schedule_flags(CLI::App& app, ScheduleOptions& options) {
  app.add_option("--schedule-pp", options.schedule, "order of the passes (default: 1f1b)")
      ->type_name(std::string(config::kPipelineChoices));
  add_number(app, "--pp", options.stages, 1, kMaxForwards)
      ->type_name("P")
      ->description("stages")
      ->required();
  add_number(app, "--microbatches", options.microbatches, 1, kMaxForwards)
      ->type_name("M")
      ->description("microbatches per stage and step, as --grad-accum in training")
      ->required();
}

parallel::PipelineShape shape_of(const ScheduleOptions& options) {
  config::Config config;
  config::assign_text(*config::find_key("layout.schedule_pp"), options.schedule, "--schedule-pp",
                      config);
  const config::PipelineSetting& setting = config.layout.schedule_pp;
  const auto& [schedule, stages, microbatches] = options;
  config::require_schedule_fits(setting, {.stages = stages, .microbatches = microbatches},
                                "--microbatches");
  if (setting.chunks > kMaxForwards / stages / microbatches) {
    fail(ErrorKind::usage,
         "schedule: {} stages with {} chunks and {} microbatches exceed the limit of {} forward "
         "passes: lower --pp or --microbatches",
         stages, setting.chunks, microbatches, kMaxForwards);
  }
  return {.stages = stages, .microbatches = microbatches, .order = setting};
}

// Lists the microbatches in flight per stage; a chunk's activations count as a fraction of one.
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

// The label of a pass: "F3", or "F3.1" for the second of several chunks.
std::string label_of(const parallel::PipelineShape& shape, const parallel::StageAction& pass) {
  const char letter = pass.kind == parallel::ActionKind::forward ? 'F' : 'B';
  const std::string chunk = shape.chunks() == 1 ? "" : fmt::format(".{}", pass.chunk);
  return fmt::format("{}{}{}", letter, pass.microbatch.value(), chunk);
}

// The timeline: one row per stage, one column per forward time; a backward takes two columns.
std::string schedule_grid(const parallel::PipelineShape& shape,
                          const parallel::Simulation& simulation) {
  const parallel::StageAction longest{parallel::ActionKind::forward, shape.chunks() - 1,
                                      data::MicrobatchId(shape.microbatches - 1)};
  const std::size_t cell = label_of(shape, longest).size() + 1;
  const std::size_t name = fmt::format("stage {}", shape.stages - 1).size();
  const auto at = [&](double time) {
    return name + 2 + static_cast<std::size_t>(std::lround(time)) * cell;
  };
  std::string text;
  for (std::size_t stage = 0; stage < simulation.stages.size(); ++stage) {
    std::string row(at(simulation.duration), ' ');
    for (std::size_t idle = at(0); idle < row.size(); idle += cell) row[idle] = '.';
    row.replace(0, name, fmt::format("{:<{}}", fmt::format("stage {}", stage), name));
    for (const parallel::TimedPass& pass : simulation.stages[stage]) {
      const std::size_t width = at(pass.end) - at(pass.begin);
      row.replace(at(pass.begin), width,
                  fmt::format("{:-<{}} ", label_of(shape, pass.action), width - 1));
    }
    text += row.substr(0, row.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

int run_schedule(const ScheduleOptions& options) {
  const parallel::PipelineShape shape = shape_of(options);
  const auto schedules = parallel::make_pipeline_schedule(shape);
  const auto kept = parallel::check_pipeline_schedule(shape, schedules);
  const parallel::Simulation simulation = parallel::simulate(shape, schedules);
  print(schedule_grid(shape, simulation));
  print(fmt::format("bubble: {:.4g} (idle time divided by busy time, mean over stages)\n",
                    simulation.bubble));
  print(memory_line(shape, kept));
  return 0;
}

}  // namespace

void add_schedule(CLI::App& parent, Action& action) {
  add_tool(parent, "schedule", "show the timeline of a pipeline's stages without running it",
           action, add_schedule_flags, run_schedule)
      .footer(
          "F3 is the forward pass of microbatch 3, B3---- its backward pass, F3.1 the forward pass "
          "through the stage's second model chunk, and a dot is idle time, one forward pass long. "
          "Below it are the bubble and the peak number of microbatches whose activations each "
          "stage holds (with V chunks per stage, a chunk counts as 1/V).\n\nAll stages are assumed "
          "to cost the same, and backward passes to take twice as long as forward passes. "
          "docs/guide/pipeline.md explains the schedules.");
}

}  // namespace dtrain::app
