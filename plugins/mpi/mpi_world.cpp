#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/log.h"
#include "dtrain/base/text/text.h"
#include "dtrain/comm/cpu_world.h"
#include "dtrain/comm/create_world.h"
#include "mpi/engine.h"
#include "mpi/mpi_transport.h"

namespace dtrain::mpi {
namespace {

using base::ErrorKind;
using comm::TransportFailure;

constexpr const char* kStart = "start the ranks with mpirun -n N dtrain ..., or use --backend gloo";

// Without these variables Open MPI silently starts a single-process job.
void require_mpirun(const comm::WorldOptions& options) {
  const char* size = std::getenv("OMPI_COMM_WORLD_SIZE");  // a setting of Open MPI's, not of ours
  const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
  if (size == nullptr || rank == nullptr) {
    base::fail(
        ErrorKind::usage,
        "--backend mpi: rank {} of {} was not started by mpirun, so MPI sees a single process; "
        "{}",
        options.rank, options.size, kStart);
  }
  if (std::to_string(options.size) != size || std::to_string(options.rank) != rank) {
    base::fail(
        ErrorKind::usage,
        "--backend mpi: the environment says rank {} of {}, but mpirun says rank {} of {}; {}",
        options.rank, options.size, rank, size, kStart);
  }
}

// Reports periodically that MPI_Init is waiting; only MPI knows for which ranks.
std::jthread start_wait_reporter(const comm::WorldOptions& options) {
  if (!options.reports_waiting) return {};
  const auto report = [others = options.size - 1,
                       lines = base::WaitReporter(options.group.timeout, options.waiting_advice)](
                          const std::stop_token& stop) mutable {
    constexpr std::chrono::milliseconds kPollInterval(200);
    std::mutex mutex;
    std::condition_variable_any never;
    std::unique_lock lock(mutex);
    while (!stop.stop_requested()) {
      never.wait_for(lock, stop, kPollInterval, [] { return false; });
      lines.report([&] { return fmt::format("the {} other ranks, in MPI_Init", others); });
    }
  };
  return std::jthread(report);
}

/// Creates a rank's groups, which share its MPI thread.
class MpiGroups {
 public:
  explicit MpiGroups(const comm::WorldOptions& options)
      : options_(options), engine_(std::make_shared<Engine>()) {
    const std::jthread reporter = start_wait_reporter(options);
    started("MPI_Init", [] {
      int provided = 0;
      check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided));
      check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    });
    engine_->set_finalize_timeout(options_.group.timeout);
  }

  [[nodiscard]] std::unique_ptr<comm::Transport> connect(const comm::GroupIdentity& identity) {
    constexpr int kTags = 1 << 14;  // MPI guarantees 32767; concurrent groups have close numbers
    const std::vector<int> ranks(identity.world_ranks.begin(), identity.world_ranks.end());
    const int tag = static_cast<int>(identity.number % kTags);
    const auto made = std::make_shared<std::unique_ptr<comm::Transport>>();
    started(fmt::format("group '{}'", identity.name),
            [ranks, tag, made, engine = engine_, reduction = options_.group.reduction] {
              MPI_Group all = MPI_GROUP_NULL;
              MPI_Group part = MPI_GROUP_NULL;
              MPI_Comm communicator = MPI_COMM_NULL;
              check(MPI_Comm_group(MPI_COMM_WORLD, &all));
              check(MPI_Group_incl(all, static_cast<int>(ranks.size()), ranks.data(), &part));
              check(MPI_Comm_create_group(MPI_COMM_WORLD, part, tag, &communicator));
              check(MPI_Comm_set_errhandler(communicator, MPI_ERRORS_RETURN));
              check(MPI_Group_free(&part));
              check(MPI_Group_free(&all));
              *made = std::make_unique<MpiTransport>(engine, communicator, reduction);
            });
    return std::move(*made);
  }

 private:
  // Runs a blocking collective in the MPI thread, with a deadline.
  template <typename Start>
  void started(const std::string& what, Start start) {
    const std::atomic<bool> never = false;
    try {
      engine_->run([start](Requests&) { start(); }, base::Deadline(options_.group.timeout), never);
    } catch (const TransportFailure& failure) {
      const bool is_late = failure.cause() == TransportFailure::Cause::no_answer;
      base::fail(
          is_late ? ErrorKind::timeout : ErrorKind::comm, "rank {}, {}: {}", options_.rank, what,
          is_late
              ? fmt::format("not all of {} ranks joined within {} (--comm-timeout)", options_.size,
                            base::readable_time(base::Seconds(options_.group.timeout).count()))
              : std::string("MPI failed: ") + failure.what());
    }
  }

  comm::WorldOptions options_;
  std::shared_ptr<Engine> engine_;
};

class MpiPlugin final : public comm::BackendPlugin {
 public:
  [[nodiscard]] int interface() const override { return comm::kBackendInterface; }
  [[nodiscard]] std::shared_ptr<comm::World> create_world(
      const comm::WorldOptions& options) override {
    require_mpirun(options);
    const auto groups = std::make_shared<MpiGroups>(options);
    return std::make_shared<comm::CpuWorld>(
        options.rank, options.size, options.group,
        comm::CpuBackend{
            .name = "mpi",
            .connect = [groups](const auto& identity) { return groups->connect(identity); },
            .allocate = [count = options.count_memory](
                            std::int64_t bytes) { return comm::mapped_memory(bytes, count); }});
  }
};

}  // namespace
}  // namespace dtrain::mpi

dtrain::comm::BackendPlugin& dtrain_backend_plugin() {
  static dtrain::mpi::MpiPlugin plugin;
  return plugin;
}
