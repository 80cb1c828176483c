// Verifies that a checkpoint is whole.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "dtrain/base/input_file.h"
#include "dtrain/checkpoint/format/manifest.h"

namespace dtrain::checkpoint::store {

inline constexpr base::FileRole kCheckpointFile{base::ErrorKind::checkpoint, "checkpoint file",
                                                "the checkpoint is damaged"};

/// Throws: Error{checkpoint} naming the manifest: missing, damaged; FileError if it cannot be read.
[[nodiscard]] format::Manifest read_manifest(const std::string& checkpoint);

/// Reads the whole file and compares size and checksum with the manifest's.
///
/// Throws:  Error{checkpoint} naming the file, and the tensor in which the damage lies if it lies
///          in one; FileError if it cannot be read.
/// Threads: any number of callers.
void verify_file(const std::string& checkpoint, const format::FileInfo& file);

}  // namespace dtrain::checkpoint::store
