#include "unit/nccl/nccl_model.h"

#include <nccl.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

struct ncclComm {
  std::atomic<ncclResult_t> state{ncclInProgress};
  std::atomic<bool> must_end{false};    // the abort flag, which kernels and threads poll
  std::atomic<bool> is_running{false};  // a kernel is waiting for peers
  std::thread connecting;
};

namespace {

using dtrain::testing::NcclNotes;
using std::chrono::milliseconds;

std::mutex mutex;  // guards the variables below
std::set<ncclComm*> alive;
NcclNotes notes;

std::atomic<bool> have_peers_come{false};
thread_local int depth = 0;
thread_local std::vector<ncclComm*> to_abort;

ncclComm* make_communicator() {
  const std::lock_guard lock(mutex);
  ++notes.made;
  return *alive.insert(new ncclComm).first;
}

// Records a use after free.
bool is_alive(ncclComm* comm) {
  const std::lock_guard lock(mutex);
  if (alive.contains(comm)) return true;
  ++notes.freed_uses;
  return false;
}

// As NCCL's threads do.
void write_handle(ncclComm** place, ncclComm* comm) {
  __atomic_store_n(place, comm, __ATOMIC_RELEASE);
}

// Waits for peers, runs `done`, then sets the state of `comm`.
template <typename Done>
void connect(ncclComm* comm, Done done) {
  if (comm->connecting.joinable()) comm->connecting.join();
  comm->state = ncclInProgress;
  comm->connecting = std::thread([comm, done] {
    while (!have_peers_come && !comm->must_end) std::this_thread::sleep_for(milliseconds(1));
    done();
    comm->state = comm->must_end ? ncclRemoteError : ncclSuccess;
  });
}

// Freeing memory waits for every kernel on the device.
void wait_for_kernels() {
  for (int look = 0; look < 500; ++look) {
    {
      const std::lock_guard lock(mutex);
      bool is_quiet = true;
      for (const ncclComm* each : alive)
        is_quiet = is_quiet && (!each->is_running || each->must_end);
      if (is_quiet) return;
    }
    std::this_thread::sleep_for(milliseconds(1));
  }
  const std::lock_guard lock(mutex);
  notes.would_hang = true;
}

void take_apart(ncclComm* comm) {
  if (comm->connecting.joinable()) comm->connecting.join();
  wait_for_kernels();
  const std::lock_guard lock(mutex);
  ++(comm->must_end ? notes.aborted : notes.destroyed);
  alive.erase(comm);
  delete comm;
}

}  // namespace

namespace dtrain::testing {

void let_peers_come() { have_peers_come = true; }

void reset_nccl() {
  have_peers_come = false;
  const std::lock_guard lock(mutex);
  notes = {};
}

NcclNotes nccl_notes() {
  const std::lock_guard lock(mutex);
  return notes;
}

}  // namespace dtrain::testing

const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclRemoteError ? "remote process exited" : "unhandled system error";
}
const char* ncclGetLastError(ncclComm_t) { return "socket.cc says more\nand more"; }

ncclResult_t ncclGroupStart() {
  ++depth;
  return ncclSuccess;
}

// Groups launch in an NCCL thread; aborts run at once.
ncclResult_t ncclGroupEnd() {
  if (--depth > 0) return ncclSuccess;
  for (ncclComm* comm : to_abort) take_apart(comm);
  to_abort.clear();
  return ncclSuccess;
}

// ncclCommInitRankFunc writes the handle last, whether peers arrived or it was aborted: for splits in
// 2.28.9, here for every communicator.
ncclResult_t ncclCommInitRankConfig(ncclComm_t* made, int, ncclUniqueId, int,
                                    ncclConfig_t* config) {
  ncclComm* const comm = make_communicator();
  {
    const std::lock_guard lock(mutex);
    notes.most_blocks = config->maxCTAs == NCCL_CONFIG_UNDEF_INT ? 64 : config->maxCTAs;
  }
  write_handle(made, comm);
  connect(comm, [=] { write_handle(made, comm); });
  return ncclInProgress;
}

// Another thread writes the new handle last. The call returns success while in progress,
// because its final macro in 2.28.9 confuses the two results.
ncclResult_t ncclCommSplit(ncclComm_t parent, int color, int, ncclComm_t* made, ncclConfig_t*) {
  *made = nullptr;
  connect(parent, [=] {
    std::this_thread::sleep_for(milliseconds(20));
    if (color == NCCL_SPLIT_NOCOLOR || parent->must_end) return;
    ncclComm* child = make_communicator();
    child->state = ncclSuccess;
    write_handle(made, child);
  });
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  if (!is_alive(comm)) return ncclInvalidArgument;
  *state = comm->state;
  return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t comm,
                           cudaStream_t) {
  if (!is_alive(comm)) return ncclInvalidArgument;
  comm->is_running = true;
  return ncclSuccess;
}

ncclResult_t ncclCommRegister(ncclComm_t, void* base, size_t, void** registration) {
  *registration = base;
  return ncclSuccess;
}

ncclResult_t ncclCommDeregister(ncclComm_t, void*) { return ncclSuccess; }

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  if (!is_alive(comm)) return ncclInvalidArgument;
  if (comm->state != ncclSuccess) return ncclInvalidArgument;
  connect(comm, [] {});
  return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (!is_alive(comm)) return ncclInvalidArgument;
  take_apart(comm);
  return ncclSuccess;
}

// Within a group, abort flags are set at once, and memory is freed at its end.
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (!is_alive(comm)) return ncclInvalidArgument;
  comm->must_end = true;
  if (depth > 0) {
    to_abort.push_back(comm);
  } else {
    take_apart(comm);
  }
  return ncclSuccess;
}

// The CUDA functions that the watchdog thread calls.
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
