#include "dtrain/train/final_model.h"

#include <exception>
#include <filesystem>
#include <optional>
#include <system_error>
#include <vector>

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
  comm::ProcessGroup& world = job.groups().world();
  const std::vector<checkpoint::NamedTensor> buffers = exported_buffers(job.whole_model());
  std::optional<checkpoint::ModelFileWriter> writer;  // rank 0's
  comm::on_leader(world, "writing the final model", [&] {
    make_folder(std::filesystem::path(path).parent_path());
    writer.emplace(path, job.whole_model().parameters, master_dtype_of(job.config().machine),
                   buffers,
                   checkpoint::format::Metadata{{kModelKey, describe(job.config().model)}});
  });
  // A disk that is full must not leave the other ranks waiting in the middle of a gather.
  std::exception_ptr failure;
  job.engine().visit_parameters([&](param::ParameterId id, const at::Tensor& values) {
    if (!writer || failure) return;
    try {
      writer->write(id, values);
    } catch (...) {
      failure = std::current_exception();
    }
  });
  comm::on_leader(world, "writing the final model", [&] {
    if (failure) std::rethrow_exception(failure);
    writer->commit();
  });
}

}  // namespace dtrain::train
