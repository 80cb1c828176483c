// Proves that all ranks write to one run folder.
#pragma once

#include <memory>
#include <string>

#include "dtrain/base/file_system.h"
#include "dtrain/comm/process_group.h"

namespace dtrain::job {

/// Opens the run folder on every rank, after each has seen a file in it that rank 0 has just made,
/// and that is gone on return. job: a name that no other start has.
///
/// Collective: every rank of `world`, once rank 0 has made the folder.
/// Throws:     Error{usage}, the same on every rank, naming the ranks that do not see rank 0's
///             folder; on rank 0 Error{checkpoint} if the file cannot be made.
[[nodiscard]] std::unique_ptr<base::HeldFolder> hold_shared_folder(comm::ProcessGroup& world,
                                                                   const std::string& run_dir,
                                                                   const std::string& job);

/// The files that hold_shared_folder makes are named as an AtomicFile's of this path: what a killed
/// job leaves of them is removed in the same way.
[[nodiscard]] std::string shared_file(const std::string& run_dir);

}  // namespace dtrain::job
