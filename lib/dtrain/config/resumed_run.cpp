#include "dtrain/config/resumed_run.h"

#include <filesystem>
#include <system_error>

namespace dtrain::config {

namespace fs = std::filesystem;

std::string resumed_config_file(const Config& config) {
  const Resume& resume = config.checkpoint.resume;
  if (resume.is_none() || (resume.is_automatic() && config.run.dir.empty())) return {};
  const fs::path run = resume.is_automatic() ? config.run.dir : resume.path;
  // RUN, or RUN/checkpoints/step-N
  for (const fs::path& folder : {run, run.lexically_normal().parent_path().parent_path()}) {
    std::error_code error;
    const fs::path file = folder / "config.json";
    if (fs::is_regular_file(file, error)) return file.string();
    if (resume.is_automatic()) break;
  }
  return {};
}

}  // namespace dtrain::config
