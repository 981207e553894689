#include "colossal/data/corpus.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "colossal/base/checksum.h"
#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/mapped_file.h"
#include "colossal/data/byte_tokenizer.h"
#include "colossal/data/text_files.h"

namespace colossal::data {

/// Tokens [first, first + count) of one file or vector; a text file has its end token behind its bytes.
struct Corpus::Run {
  std::string name;
  std::shared_ptr<const MappedFile> file = {};
  std::shared_ptr<const std::vector<uint32_t>> memory = {};  // instead of a file
  int width = 1;                                             // bytes of a stored token
  int64_t stored = 0;                                        // tokens that are stored
  int64_t first = 0, count = 0;                              // of the stored ones and the end token behind them

  int64_t token(int64_t index, int64_t end_id) const {
    if (index >= stored) return end_id;
    if (memory) return (*memory)[index];
    const char* at = file->bytes().data() + index * width;
    if (width == 1) return static_cast<unsigned char>(*at);
    uint32_t value = 0;  // little endian, like every machine this runs on
    std::memcpy(&value, at, width);
    return value;
  }
};

namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr int64_t kChecked = 1'000'000;  // tokens looked at when a file is opened
constexpr int64_t kMaxSidecarBytes = 1 << 20;

struct Sidecar {
  int width;
  int64_t end_id;
};

Sidecar read_sidecar(const std::string& path) {
  const std::string name = path + ".json";
  std::error_code none;
  require(fs::exists(name, none), "data", "a token file needs a sidecar: write ", name,
          " with {\"dtype\": \"uint16\", \"end_id\": 50256} (dtype uint16 or uint32; end_id may be left out)");
  const json sidecar = json::parse(read_file(name, kMaxSidecarBytes), nullptr, false);
  require(sidecar.is_object() && sidecar.contains("dtype"), "data", name, " must be a JSON object with a dtype");
  const json& dtype = sidecar["dtype"];
  require(dtype == "uint16" || dtype == "uint32", "data", name, ": dtype must be uint16 or uint32: got ", dtype.dump());
  const json end = sidecar.value("end_id", json(-1));
  require(end.is_number_integer(), "data", name, ": end_id must be a token id: got ", end.dump());
  return {dtype == "uint16" ? 2 : 4, end.get<int64_t>()};
}

}  // namespace

void Corpus::add(Run run) {
  if (run.count == 0) return;
  starts_.push_back(size_);
  size_ += run.count;
  runs_.push_back(std::make_shared<const Run>(std::move(run)));
}

Corpus Corpus::of(std::vector<uint32_t> tokens, int64_t end_id, int64_t vocabulary_size) {
  Corpus corpus(end_id, vocabulary_size);
  Run run{.name = "memory", .memory = std::make_shared<const std::vector<uint32_t>>(std::move(tokens))};
  run.stored = run.count = static_cast<int64_t>(run.memory->size());
  corpus.add(std::move(run));
  return corpus;
}

Corpus Corpus::open_tokens(const std::string& path, int64_t vocabulary_size) {
  const Sidecar sidecar = read_sidecar(path);
  Corpus corpus(sidecar.end_id, vocabulary_size);
  Run run{.name = path, .file = MappedFile::open(path), .width = sidecar.width};
  const int64_t bytes = static_cast<int64_t>(run.file->bytes().size());
  require(bytes % sidecar.width == 0, "data", path, " must hold whole tokens of ", sidecar.width, " bytes: got ", bytes,
          " bytes");
  run.stored = run.count = bytes / sidecar.width;
  corpus.add(std::move(run));
  return corpus;
}

void Corpus::add_text(const std::string& path, const Tokenizer& tokenizer) {
  auto file = MappedFile::open(path);
  if (file->bytes().empty()) return;
  Run run{.name = path};
  if (dynamic_cast<const ByteTokenizer*>(&tokenizer)) {
    run.stored = static_cast<int64_t>(file->bytes().size());
    run.file = std::move(file);
  } else {
    const std::vector<int64_t> ids = tokenizer.encode(file->bytes());
    run.stored = static_cast<int64_t>(ids.size());
    run.memory = std::make_shared<const std::vector<uint32_t>>(ids.begin(), ids.end());
  }
  run.count = run.stored + (end_id_ >= 0 ? 1 : 0);
  add(std::move(run));
}

Corpus Corpus::open(const std::string& path, const Tokenizer& tokenizer, const std::vector<std::string>& excluded) {
  std::error_code none;
  require(fs::exists(path, none), "data", "no such file or folder: data.path = ", path);
  Corpus corpus(tokenizer.end_id(), tokenizer.vocabulary_size());
  if (fs::is_directory(path, none)) {
    const std::vector<std::string> files = text_files(path, excluded);
    require(!files.empty(), "data", path, " holds no text files; known endings: ", text_endings());
    for (const std::string& file : files) corpus.add_text(file, tokenizer);
  } else if (fs::path(path).extension() == ".bin") {
    corpus = open_tokens(path, tokenizer.vocabulary_size());
  } else {
    corpus.add_text(path, tokenizer);
  }
  require(corpus.size() > 0, "data", path, " is empty");
  std::vector<int64_t> ids(std::min(corpus.size(), kChecked));
  corpus.read(0, static_cast<int64_t>(ids.size()), ids.data());
  return corpus;
}

void Corpus::read(int64_t begin, int64_t count, int64_t* out) const {
  require(begin >= 0 && count >= 0 && begin <= size_ && count <= size_ - begin, "data", "tokens [", begin, ", +", count,
          ") lie outside the stream of ", size_);
  size_t at = std::upper_bound(starts_.begin(), starts_.end(), begin) - starts_.begin() - 1;
  for (int64_t done = 0; done < count; ++at) {
    const Run& run = *runs_[at];
    const int64_t offset = begin + done - starts_[at], length = std::min(run.count - offset, count - done);
    for (int64_t i = 0; i < length; ++i) {
      const int64_t token = run.token(run.first + offset + i, end_id_);
      require(token < vocabulary_size_, "data", run.name, ": token ", run.first + offset + i, " has id ", token,
              ", the vocabulary only ", vocabulary_size_, " (another tokenizer, or another dtype in the sidecar?)");
      out[done + i] = token;
    }
    done += length;
  }
}

std::pair<Corpus, Corpus> Corpus::split(double fraction) const {
  require(fraction >= 0 && fraction < 1, "data", "the held-out fraction must be in [0, 1): got ", fraction);
  std::pair<Corpus, Corpus> parts{Corpus(end_id_, vocabulary_size_), Corpus(end_id_, vocabulary_size_)};
  const size_t every = fraction > 0 ? std::max<size_t>(2, std::lround(1 / fraction)) : 0;
  if (runs_.size() > 1) {
    for (size_t i = 0; i < runs_.size(); ++i)
      (every > 0 && (i + 1) % every == 0 ? parts.second : parts.first).add(*runs_[i]);
    return parts;
  }
  for (const auto& run : runs_) {
    Run training = *run, held_out = *run;
    held_out.count = static_cast<int64_t>(std::floor(fraction * static_cast<double>(run->count)));
    training.count -= held_out.count;
    held_out.first += training.count;
    parts.first.add(std::move(training));
    parts.second.add(std::move(held_out));
  }
  return parts;
}

std::string Corpus::fingerprint() const {
  std::string text = concat(end_id_, " ", vocabulary_size_);
  for (const auto& run : runs_)
    text += concat("\n", fs::path(run->name).filename().string(), " ", run->width, " ", run->stored, " ", run->first,
                   " ", run->count);
  return checksum(text);
}

void write_token_file(const std::string& path, const std::vector<uint32_t>& tokens, int64_t vocabulary_size,
                      int64_t end_id) {
  const bool narrow = vocabulary_size <= 65536;
  std::string bytes;
  for (const uint32_t token : tokens) {
    require(token < vocabulary_size, "data", "token id ", token, " is outside the vocabulary of ", vocabulary_size);
    bytes.append(reinterpret_cast<const char*>(&token), narrow ? 2 : 4);
  }
  json sidecar = {{"dtype", narrow ? "uint16" : "uint32"}, {"vocabulary_size", vocabulary_size}};
  if (end_id >= 0) sidecar["end_id"] = end_id;
  write_file(path, bytes);
  write_file(path + ".json", sidecar.dump() + "\n");
}

}  // namespace colossal::data
