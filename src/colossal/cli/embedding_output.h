// Where the vectors of texts go: lines of JSON, or an array that numpy.load() reads.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace colossal::cli {

class EmbeddingOutput {
 public:
  virtual ~EmbeddingOutput() = default;
  /// The vector of the next text. Errors ("embed"): a number that is not finite; "file": what cannot be written.
  virtual void put(const std::string& text, const float* vector, size_t size) = 0;
  /// Behind the last. A file has its name only from here on. Errors: as of put().
  virtual void finish() = 0;
};

/// {"embedding": [...]} a line, with `with_text` the text in front, to `path`, or where that is empty to standard
/// output. Numbers are the shortest that read back as the same float.
std::unique_ptr<EmbeddingOutput> json_output(const std::string& path, bool with_text);

/// A float32 array [texts, size] in numpy's format (NEP 1, version 1.0). finish() refuses ("embed") another number of
/// texts than `texts`, which stands in front of them.
std::unique_ptr<EmbeddingOutput> npy_output(const std::string& path, int64_t texts, int64_t size);

}  // namespace colossal::cli
