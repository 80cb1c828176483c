#include "dtrain/train/final_model.h"

#include <filesystem>
#include <system_error>

#include "dtrain/base/error.h"
#include "dtrain/checkpoint/model_file.h"
#include "dtrain/train/model_description.h"

namespace dtrain::train {

void write_final_model(Job& job, const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    base::fail(base::ErrorKind::checkpoint, "{}: cannot be created: {}", folder.string(),
               error.message());
  }
  checkpoint::write_model_file(path, job.model().parameters, job.engine().parameters(),
                               exported_buffers(job.model()),
                               {{kModelKey, describe(job.config().model)}});
}

}  // namespace dtrain::train
