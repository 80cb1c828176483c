#include "schedule_grid.h"

#include <fmt/format.h>

#include <cmath>

namespace dtrain::app {
namespace {

// "F3"; "F3.1" for the second of several chunks.
std::string label_of(const parallel::PipelineShape& shape, const parallel::StageAction& pass) {
  const char letter = pass.kind == parallel::ActionKind::forward ? 'F' : 'B';
  const std::string chunk = shape.chunks() == 1 ? "" : fmt::format(".{}", pass.chunk);
  return fmt::format("{}{}{}", letter, pass.microbatch.value(), chunk);
}

}  // namespace

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

}  // namespace dtrain::app
