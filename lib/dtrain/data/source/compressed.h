// Recognises and decompresses streams of gzip and zstd.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "dtrain/data/source/byte_stream.h"

namespace dtrain::data {

/// By the first bytes of a file, at least 4 or all.
[[nodiscard]] bool is_gzip(std::string_view start);
/// The same; zstd data may begin with a frame to be skipped, as pzstd writes it.
[[nodiscard]] bool is_zstd(std::string_view start);

/// The text of gzip data, of one member after another. path: for messages.
[[nodiscard]] std::unique_ptr<ByteStream> gunzip(std::unique_ptr<ByteStream> from,
                                                 std::string path);

/// The text of zstd data, of one frame after another.
[[nodiscard]] std::unique_ptr<ByteStream> unzstd(std::unique_ptr<ByteStream> from,
                                                 std::string path);

}  // namespace dtrain::data
