#include "colossal/cli/embedding_output.h"

#include <bit>
#include <charconv>
#include <cmath>
#include <optional>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/json.h"
#include "colossal/cli/standard_output.h"
#include "colossal/text/tokenizer.h"

namespace colossal::cli {
namespace {

class JsonEmbeddings : public EmbeddingOutput {
 public:
  JsonEmbeddings(const std::string& path, bool with_text) : with_text_(with_text) {
    if (!path.empty()) file_.emplace(path);
  }

  void put(const std::string& text, const float* vector, size_t size) override {
    std::string line = "{";
    if (with_text_) line += "\"text\":" + nlohmann::json(text::valid_utf8(text)).dump() + ",";
    line += "\"embedding\":[";
    for (size_t i = 0; i < size; ++i) {
      require(std::isfinite(vector[i]), "embed", "an embedding must be finite, because JSON has no other numbers: got ",
              vector[i], " at index ", i, "; is the precision too low for these weights?");
      char digits[32];
      const auto end = std::to_chars(digits, digits + sizeof digits, vector[i]).ptr;
      if (i > 0) line += ',';
      line.append(digits, end);
    }
    line += "]}";
    if (file_)
      file_->write(line + "\n");
    else
      put_line(line);
  }

  void finish() override {
    if (file_) file_->commit();
  }

 private:
  bool with_text_;
  std::optional<AtomicFile> file_;
};

class NpyEmbeddings : public EmbeddingOutput {
 public:
  NpyEmbeddings(const std::string& path, int64_t texts, int64_t size) : file_(path), texts_(texts) {
    static_assert(std::endian::native == std::endian::little);
    std::string header = concat("{'descr': '<f4', 'fortran_order': False, 'shape': (", texts, ", ", size, "), }");
    constexpr size_t kBefore = 10;  // magic, version, length of the header
    header.resize((kBefore + header.size() + 1 + 63) / 64 * 64 - kBefore - 1, ' ');
    header += '\n';
    file_.write(std::string_view("\x93NUMPY\x01\x00", 8));
    const char length[] = {static_cast<char>(header.size() & 0xFF), static_cast<char>(header.size() >> 8)};
    file_.write(length, sizeof length);
    file_.write(header);
  }

  void put(const std::string&, const float* vector, size_t size) override {
    file_.write(vector, size * sizeof(float));
    ++put_;
  }

  void finish() override {
    require(put_ == texts_, "embed", "the texts changed while they were embedded: the number was ", texts_, ", now ",
            put_);
    file_.commit();
  }

 private:
  AtomicFile file_;
  int64_t texts_, put_ = 0;
};

}  // namespace

std::unique_ptr<EmbeddingOutput> json_output(const std::string& path, bool with_text) {
  return std::make_unique<JsonEmbeddings>(path, with_text);
}

std::unique_ptr<EmbeddingOutput> npy_output(const std::string& path, int64_t texts, int64_t size) {
  return std::make_unique<NpyEmbeddings>(path, texts, size);
}

}  // namespace colossal::cli
