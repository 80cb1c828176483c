#include "dtrain/train/final_model.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/checkpoint/model_file.h"
#include "dtrain/config/json.h"

namespace dtrain::train {

std::string final_model_path(const std::string& run_dir) {
  return (std::filesystem::path(run_dir) / "final" / "model.safetensors").string();
}

void write_final_model(Job& job, const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    base::fail(base::ErrorKind::checkpoint, "{}: cannot be created: {}", folder.string(),
               error.message());
  }
  const auto json =
      nlohmann::ordered_json::parse(config::to_json(config::Command::train, job.config()));
  std::vector<checkpoint::NamedTensor> buffers;
  for (const model::ExportedBuffer& buffer : job.model().buffers) {
    buffers.push_back({buffer.name, buffer.value});
  }
  checkpoint::write_model_file(path, job.model().parameters, job.engine().parameters(), buffers,
                               {{"dtrain.model", json.at("model").dump()}});
}

}  // namespace dtrain::train
