#include "support/fake_device/launched_kernel.h"

#include <c10/util/Exception.h>

#include <utility>

#include "support/fake_device/aliases.h"
#include "support/fake_device/graph.h"
#include "support/fake_device/launches.h"

namespace dtrain::testing::fake {
namespace {

void check_races(const std::vector<Access>& accesses, const Epoch& kernel, const Clock& known) {
  if (auto race = find_race(accesses, kernel, known)) streams().report_race(std::move(*race));
}

}  // namespace

LaunchedKernel::LaunchedKernel(StreamNumber stream, const char* name,
                               const std::vector<Access>& accesses)
    : name_((refuse_in_capture(name), name)), ticket_(streams().take(stream)) {
  note_launch({.device = streams().device_of(stream), .kernel = epoch(), .before = ticket_.before});
  check_races(accesses, epoch(), after());
}

LaunchedKernel::~LaunchedKernel() { end(); }

void LaunchedKernel::end() {
  if (std::exchange(has_ended_, true)) return;
  streams().wait(ticket_.before);
  streams().finish(ticket_);
}

void LaunchedKernel::run(const std::function<void()>& kernel) {
  streams().wait(ticket_.before);
  streams().wait(ticket_.in_front);
  kernel();
  end();
}

void LaunchedKernel::defer(Streams::Task task) {
  has_ended_ = true;
  streams().submit(ticket_, std::move(task));
}

void LaunchedKernel::wrote(const at::Tensor& tensor) {
  check_races({access_of(tensor, true)}, epoch(), after());
}

void launch(const c10::Stream& stream, const char* name, const std::vector<at::Tensor>& reads,
            const std::vector<at::Tensor>& writes, Function function) {
  Aliases aliases;
  std::vector<Access> accesses;
  const auto for_kernel = [&](const std::vector<at::Tensor>& tensors, bool is_write) {
    std::vector<at::Tensor> result;
    for (const at::Tensor& tensor : tensors) {
      accesses.push_back(access_of(tensor, is_write));
      result.push_back(aliases.to_host(tensor));
    }
    return result;
  };
  auto host_reads = for_kernel(reads, false);
  auto host_writes = for_kernel(writes, true);
  LaunchedKernel kernel(static_cast<StreamNumber>(stream.id()), name, accesses);
  kernel.defer({.run = [r = std::move(host_reads), w = std::move(host_writes),
                        f = std::move(function)] { f(r, w); },
                .may_wait = true});
}

}  // namespace dtrain::testing::fake
