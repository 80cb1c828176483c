// Makes a small checkpoint whose values follow from step, tensor and position alone.
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

/// One rank's part: rows of one tensor, columns of another, two stretches of a third; on the first
/// rank a tensor without elements, on the last a scalar.
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

/// The folder in which save_example_shard writes.
[[nodiscard]] std::string example_folder(const std::string& checkpoints, std::int64_t step);

/// Does one rank's part; the folder must exist.
[[nodiscard]] checkpoint::format::Contents save_example_shard(base::FileSystem& files,
                                                              const std::string& checkpoints,
                                                              std::int64_t step, std::int64_t rank,
                                                              std::int64_t num_ranks);

/// commit(), where a checkpoint that may not survive a crash of the machine is an error.
void commit_example(base::FileSystem& files, const std::string& checkpoints,
                    const checkpoint::format::Manifest& manifest);

/// All that ranks do for a checkpoint, one after the other, up to and with commit.
void save_example(base::FileSystem& files, const std::string& checkpoints, std::int64_t step,
                  std::int64_t num_ranks);

/// Reads manifest and files of a checkpoint, checksums and all.
///
/// Throws: Error{checkpoint} naming what is damaged.
checkpoint::format::Manifest verify_all(const std::string& checkpoint);

/// "" if the checkpoint holds the values of `step`, else what is different.
///
/// Throws: as verify_all.
[[nodiscard]] std::string example_difference(const std::string& checkpoint, std::int64_t step);

}  // namespace dtrain::testing
