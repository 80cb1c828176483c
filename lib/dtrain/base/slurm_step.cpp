#include "dtrain/base/slurm_step.h"

#include "dtrain/base/error.h"
#include "dtrain/base/host_list.h"
#include "dtrain/base/printable.h"

namespace dtrain::base {
namespace {

constexpr std::int64_t kFirstPort = 20'000;
constexpr std::int64_t kNumPlaces = 5'000;
constexpr std::int64_t kStepsBeforeNextJob = 61;

}  // namespace

std::string first_host_of(const SlurmStep& step) {
  if (step.hosts.empty()) {
    fail(ErrorKind::usage,
         "SLURM_STEP_NODELIST does not name the {} nodes of this step; set MASTER_ADDR to an "
         "address of the first one",
         step.num_nodes);
  }
  const auto hosts = expand_host_list(step.hosts);
  if (!hosts) {
    fail(ErrorKind::usage,
         "SLURM_STEP_NODELIST: found \"{}\", which is no list of hosts; set MASTER_ADDR to an "
         "address of the first one",
         printable(step.hosts.substr(0, 200)));
  }
  return hosts->front();
}

std::int64_t port_of(const SlurmStep& step) {
  if (step.master_port != 0) return step.master_port;
  const std::int64_t place = (step.job_id * kStepsBeforeNextJob + step.step_id) % kNumPlaces;
  return kFirstPort + 2 * place;
}

}  // namespace dtrain::base
