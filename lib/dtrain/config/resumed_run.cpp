#include "dtrain/config/resumed_run.h"

#include <filesystem>
#include <system_error>

namespace dtrain::config {

namespace fs = std::filesystem;

std::string resumed_config_file(const Config& config) {
  const Resume& resume = config.checkpoint.resume;
  if (resume.is_none() || (resume.is_automatic() && config.run.dir.empty())) return {};
  const fs::path run = resume.is_automatic() ? config.run.dir : resume.path;
  std::error_code error;
  // RUN, or RUN/checkpoints/step-N
  const fs::path checkpoints = fs::weakly_canonical(run, error).parent_path();
  const bool is_checkpoint = checkpoints.filename() == "checkpoints";
  for (const fs::path& folder : {run, is_checkpoint ? checkpoints.parent_path() : run}) {
    const fs::path file = folder / "config.json";
    if (fs::is_regular_file(file, error)) return file.string();
    if (resume.is_automatic()) break;
  }
  return {};
}

}  // namespace dtrain::config
