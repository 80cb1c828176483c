#include "dtrain/train/final_model.h"

#include <filesystem>
#include <optional>
#include <system_error>

#include "dtrain/base/error.h"
#include "dtrain/checkpoint/model_file.h"
#include "dtrain/comm/leader.h"
#include "dtrain/train/model_description.h"

namespace dtrain::train {

namespace {

void make_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    base::fail(base::ErrorKind::checkpoint, "{}: cannot be created: {}", folder.string(),
               error.message());
  }
}

}  // namespace

void write_final_model(Job& job, const std::string& path) {
  const std::optional<param::Arena> parameters = job.engine().whole_parameters();
  comm::on_leader(job.groups().world(), "writing the final model", [&] {
    make_folder(std::filesystem::path(path).parent_path());
    checkpoint::write_model_file(path, job.model().parameters, parameters.value(),
                                 exported_buffers(job.model()),
                                 {{kModelKey, describe(job.config().model)}});
  });
}

}  // namespace dtrain::train
