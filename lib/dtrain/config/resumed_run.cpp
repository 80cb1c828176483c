#include "dtrain/config/resumed_run.h"

#include <filesystem>

#include "dtrain/base/path_kind.h"

namespace dtrain::config {

namespace fs = std::filesystem;

std::string resumed_config_file(const Config& config) {
  const Resume& resume = config.checkpoint.resume;
  if (resume.is_none() || (resume.is_automatic() && config.run.dir.empty())) return {};
  const fs::path run = resume.is_automatic() ? config.run.dir : resume.path;
  // RUN, or RUN/checkpoints/step-N
  const fs::path checkpoints = base::resolved_path(run).parent_path();
  const bool is_checkpoint = checkpoints.filename() == "checkpoints";
  for (const fs::path& folder : {run, is_checkpoint ? checkpoints.parent_path() : run}) {
    const fs::path file = folder / "config.json";
    if (fs::is_regular_file(base::path_status(file))) return file.string();
    if (resume.is_automatic()) break;
  }
  return {};
}

}  // namespace dtrain::config
