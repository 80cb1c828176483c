// Writes small checkpoints with values that depend on step, tensor and position.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "dtrain/base/io/file_system.h"
#include "dtrain/checkpoint/store/commit.h"
#include "dtrain/checkpoint/store/shard_writer.h"

namespace dtrain::testing {

inline const std::string kExampleRun = "18ea4b45c0de1234-77";

/// One rank's part of an example checkpoint: rows of one tensor, columns of another, two ranges of
/// a third; the first rank also has an empty tensor, the last rank a scalar.
class ExampleShard {
 public:
  ExampleShard(std::int64_t step, std::int64_t rank, std::int64_t num_ranks);

  [[nodiscard]] std::span<const checkpoint::store::PieceBytes> pieces() const { return pieces_; }

 private:
  void add(const std::string& tensor, checkpoint::format::Box box);

  std::int64_t step_;
  std::deque<std::vector<std::byte>> bytes_;
  std::vector<checkpoint::store::PieceBytes> pieces_;
};

[[nodiscard]] checkpoint::format::Manifest example_manifest(std::int64_t step,
                                                            std::int64_t num_ranks);

/// The folder to which save_example_shard writes.
[[nodiscard]] std::string example_folder(const std::string& checkpoints, std::int64_t step);

/// Writes one rank's part; the folder must exist.
[[nodiscard]] checkpoint::format::Contents save_example_shard(base::FileSystem& files,
                                                              const std::string& checkpoints,
                                                              std::int64_t step, std::int64_t rank,
                                                              std::int64_t num_ranks);

/// Calls commit(); fails if the checkpoint may not survive a crash of the machine.
void commit_example(base::FileSystem& files, const std::string& checkpoints,
                    const checkpoint::format::Manifest& manifest);

/// Saves and commits a checkpoint, rank by rank.
void save_example(base::FileSystem& files, const std::string& checkpoints, std::int64_t step,
                  std::int64_t num_ranks);

/// Reads and verifies the manifest and all files of a checkpoint.
///
/// Throws: Error{checkpoint} naming the damaged file.
checkpoint::format::Manifest verify_all(const std::string& checkpoint);

/// Returns an empty text if the checkpoint has the values of `step`, otherwise the difference.
///
/// Throws: as verify_all.
[[nodiscard]] std::string example_difference(const std::string& checkpoint, std::int64_t step);

}  // namespace dtrain::testing
