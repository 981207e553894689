#include "colossal/data/texts/corpus.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <numeric>

#include "colossal/base/checksum.h"
#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/file_name.h"
#include "colossal/base/json_file.h"
#include "colossal/base/text_start.h"
#include "colossal/data/streams/json_lines.h"
#include "colossal/data/texts/files.h"
#include "colossal/data/texts/stored_tokens.h"
#include "colossal/data/texts/text_archive.h"
#include "colossal/text/tokenizers/byte.h"
#include "colossal/text/unicode.h"

namespace colossal::data {

/// The stored tokens [first, first + kept) of a document. If `closed` is true, an end token follows them.
struct Corpus::Run {
  std::string name;  // path within the corpus, the same on every machine
  std::shared_ptr<const StoredTokens> stored;
  int64_t first = 0, kept = 0;
  bool closed = false;

  int64_t count() const { return kept + (closed ? 1 : 0); }
  /// Copies tokens [begin, begin + length) of the run to `out`.
  void read(int64_t begin, int64_t length, int64_t end_id, int64_t* out) const {
    const int64_t from_store = std::clamp<int64_t>(kept - begin, 0, length);
    if (from_store > 0) stored->read(first + begin, from_store, out);
    std::fill(out + from_store, out + length, end_id);
  }
};

namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr int64_t kChecked = 1'000'000;  // number of tokens that open() checks
constexpr int64_t kMaxTokens = int64_t{1} << 60;
constexpr int64_t kMaxSidecarBytes = 1 << 20;
constexpr int64_t kJsonStart = 1 << 16;  // number of bytes in which JSON is recognized
constexpr int64_t kMaxEncodedBytes = int64_t{16} << 30;
constexpr size_t kMaxListed = 1000;  // maximum number of documents that a checkpoint lists

/// Replaces bytes that are not UTF-8 by `?`, because a file name may be any bytes and a checkpoint must be UTF-8.
std::string as_utf8(const std::string& name) {
  std::string text;
  for (size_t at = 0; at < name.size();) {
    const text::Utf8Character next = text::first_character(std::string_view(name).substr(at));
    text += next.kind == text::Utf8::Complete ? name.substr(at, next.length) : "?";
    at += next.length;
  }
  return text;
}

bool is_of_bytes(const text::Tokenizer& tokenizer) {
  return dynamic_cast<const text::ByteTokenizer*>(&tokenizer) != nullptr;
}

struct Sidecar {
  int width;
  int64_t end_id;
};

Sidecar read_sidecar(const std::string& path, int64_t vocabulary_size) {
  const std::string name = path + ".json";
  std::error_code none;
  require(fs::exists(name, none), "data", "a token file needs a sidecar: write ", name,
          " with {\"dtype\": \"uint16\", \"end_id\": 50256} (dtype uint16 or uint32; end_id may be left out)");
  const json sidecar = read_json_object(name, "data", {.bytes = kMaxSidecarBytes});
  require(sidecar.contains("dtype"), "data", name, " must be a JSON object with a dtype");
  const json& dtype = sidecar["dtype"];
  require(dtype == "uint16" || dtype == "uint32", "data", name, ": dtype must be uint16 or uint32: got ",
          printable(dtype.dump()));
  const json end = sidecar.value("end_id", json(-1));
  const bool is_id =
      end.is_number_unsigned() ? end.get<uint64_t>() < static_cast<uint64_t>(vocabulary_size) : end == -1;
  require(is_id, "data", name, ": end_id must be a token id below the vocabulary of ", vocabulary_size, ", or -1: got ",
          printable(end.dump()), "; leave it out if no token ends a document");
  return {dtype == "uint16" ? 2 : 4, end.get<int64_t>()};
}

/// Returns for each document the number of tokens at its end that are held out; see Corpus::split().
std::vector<int64_t> held_out_ends(const std::vector<int64_t>& sizes, double fraction) {
  const auto share = [&](int64_t tokens) {
    return static_cast<int64_t>(std::floor(fraction * static_cast<double>(tokens)));
  };
  const int64_t wanted = share(std::accumulate(sizes.begin(), sizes.end(), int64_t{0}));
  std::vector<int64_t> ends(sizes.size(), 0);
  // `seen` counts the tokens of documents that fit, `whole` the tokens of these documents that are held out.
  int64_t seen = 0, whole = 0, missing = wanted;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] > wanted) {
      ends[i] = share(sizes[i]);
    } else {
      seen += sizes[i];
      if (whole + sizes[i] <= share(seen)) whole += ends[i] = sizes[i];
    }
    missing -= ends[i];
  }
  if (missing * 10 <= wanted) return ends;
  size_t largest = 0;
  for (size_t i = 0; i < sizes.size(); ++i)
    if (sizes[i] - ends[i] >= sizes[largest] - ends[largest]) largest = i;
  ends[largest] += std::min(missing, sizes[largest] - ends[largest]);
  return ends;
}

}  // namespace

void Corpus::add(Run run) {
  if (run.count() == 0) return;
  require(run.count() <= kMaxTokens - size_, "data", run.stored->name(), ": the data must have at most 2^60 tokens");
  starts_.push_back(size_);
  size_ += run.count();
  runs_.push_back(std::make_shared<const Run>(std::move(run)));
}

Corpus Corpus::of(std::vector<uint32_t> tokens, int64_t end_id, int64_t vocabulary_size) {
  Corpus corpus(end_id, vocabulary_size);
  std::string bytes(reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(uint32_t));
  const auto stored = std::make_shared<const StoredTokens>("memory", std::move(bytes), 4);
  corpus.add({"memory", stored, 0, stored->count()});
  return corpus;
}

Corpus Corpus::open_tokens(const std::string& path, int64_t vocabulary_size) {
  const Sidecar sidecar = read_sidecar(path, vocabulary_size);
  Corpus corpus(sidecar.end_id, vocabulary_size);
  const auto stored = std::make_shared<const StoredTokens>(path, sidecar.width);
  corpus.add({fs::path(path).filename().string(), stored, 0, stored->count()});
  return corpus;
}

void Corpus::add_text(const std::string& path, const std::string& name, const text::Tokenizer& tokenizer) {
  if (is_of_bytes(tokenizer)) {
    const auto stored = std::make_shared<const StoredTokens>(path, 1);
    if (stored->count() > 0) add({name, stored, 0, stored->count(), end_id_ >= 0});
    return;
  }
  const auto file = InputFile::open(path);
  require(file->size() <= kMaxEncodedBytes, "data", path,
          " is too large to encode at the start of a run: ", file->size(), " bytes, at most ", kMaxEncodedBytes,
          "; encode it once and set data.path to the .bin file, or cut it into several");
  add_text(path, name, file->content(), tokenizer);
}

void Corpus::add_text(const std::string& path, const std::string& name, std::string text,
                      const text::Tokenizer& tokenizer) {
  if (text.empty()) return;
  std::shared_ptr<const StoredTokens> stored;
  if (is_of_bytes(tokenizer)) {
    stored = std::make_shared<const StoredTokens>(StoredTokens::of_text(path, std::move(text)));
  } else {
    std::string bytes;
    std::vector<int64_t> ids = tokenizer.encode_document(text);
    if (tokenizer.end_id() >= 0) ids.pop_back();  // the end is not stored
    for (const int64_t id : ids) {
      const auto token = static_cast<uint32_t>(id);
      bytes.append(reinterpret_cast<const char*>(&token), sizeof token);
    }
    stored = std::make_shared<const StoredTokens>(path, std::move(bytes), 4);
  }
  add({name, stored, 0, stored->count(), end_id_ >= 0});
}

void Corpus::check(const std::string& path) const {
  require(size() > 0, "data", path, " is empty", left_out_ ? "; " + *left_out_ : "");
  std::vector<int64_t> ids(std::min(size(), kChecked));
  read(0, static_cast<int64_t>(ids.size()), ids.data());
}

Corpus Corpus::open_archive(const std::string& path, const text::Tokenizer& tokenizer) {
  Corpus corpus(tokenizer.end_id(), tokenizer.vocabulary_size());
  for (ArchivedText& file : read_text_archive(path))
    if (!other_format(std::string_view(file.text).substr(0, kTextStart)))
      corpus.add_text(path + "/" + file.name, file.name, std::move(file.text), tokenizer);
  corpus.check(path);
  return corpus;
}

Corpus Corpus::open(const std::string& path, const text::Tokenizer& tokenizer,
                    const std::vector<std::string>& excluded) {
  std::error_code none;
  require(fs::exists(path, none), "data", "no such file or folder: data.path = ", path,
          fs::path(path).is_relative() ? concat(" (seen from ", fs::current_path().string(), ")") : "",
          "; if the data moved, set --data.path=PATH");
  Corpus corpus(tokenizer.end_id(), tokenizer.vocabulary_size());
  if (fs::is_directory(path, none)) {
    LeftOut left_out;
    std::vector<std::string> files = text_files(path, excluded, &left_out);
    std::erase_if(files, [&](const std::string& file) {
      const std::optional<std::string> format = other_format_of_file(file);
      if (format) left_out.add(file, concat(" (", *format, ")"));
      return format.has_value();
    });
    corpus.left_out_ = left_out.notice(path);
    require(!files.empty(), "data", path, " holds no text files; known endings: ", text_endings(),
            corpus.left_out_ ? "; " + *corpus.left_out_ : "");
    for (const std::string& file : files) {
      const fs::path name = fs::path(file).lexically_relative(path);
      corpus.add_text(file, name.string(), tokenizer);
    }
  } else if (has_ending(path, ".bin")) {
    corpus = open_tokens(path, tokenizer.vocabulary_size());
  } else {
    require_text_file(path, "data");
    const auto file = InputFile::open(path);
    require_no_json(file->start(kJsonStart), file->size() <= kJsonStart, path);
    corpus.add_text(path, fs::path(path).filename().string(), tokenizer);
  }
  corpus.check(path);
  return corpus;
}

void Corpus::read(int64_t begin, int64_t count, int64_t* out) const {
  require(begin >= 0 && count >= 0 && begin <= size_ && count <= size_ - begin, "data", "tokens [", begin, ", +", count,
          ") are outside the stream of ", size_);
  size_t at = std::upper_bound(starts_.begin(), starts_.end(), begin) - starts_.begin() - 1;
  for (int64_t done = 0; done < count; ++at) {
    const Run& run = *runs_[at];
    const int64_t offset = begin + done - starts_[at], length = std::min(run.count() - offset, count - done);
    run.read(offset, length, end_id_, out + done);
    for (int64_t i = 0; i < length; ++i)
      require(out[done + i] < vocabulary_size_, "data", run.stored->name(), ": token ", run.first + offset + i,
              " has id ", out[done + i], ", but the vocabulary has ", vocabulary_size_,
              " (another tokenizer, or another dtype in the sidecar?)");
    done += length;
  }
}

std::pair<Corpus, Corpus> Corpus::split(double fraction) const {
  require(fraction >= 0 && fraction < 1, "data", "the held-out fraction must be in [0, 1): got ", fraction);
  std::vector<int64_t> sizes;
  for (const auto& run : runs_) sizes.push_back(run->count());
  const std::vector<int64_t> held_out = held_out_ends(sizes, fraction);
  std::pair<Corpus, Corpus> parts{Corpus(end_id_, vocabulary_size_), Corpus(end_id_, vocabulary_size_)};
  for (size_t i = 0; i < runs_.size(); ++i) {
    const Run& whole = *runs_[i];
    const int64_t rest = whole.count() - held_out[i];
    Run training = whole, end = whole;
    // An end token replaces the last token before the cut, because the next document must not continue this one.
    if (held_out[i] > 0 && rest > 0) {
      training.kept = rest - (whole.closed ? 1 : 0);
      end.first += rest;
      end.kept -= rest;
    }
    if (rest > 0) parts.first.add(std::move(training));
    if (held_out[i] > 0) parts.second.add(std::move(end));
  }
  return parts;
}

json Corpus::traits() const { return {{"files", contents()}, {"end_id", end_id_}, {"vocabulary", vocabulary_size_}}; }

std::map<std::string, std::string> Corpus::contents() const {
  std::map<std::string, std::string> contents;
  for (const auto& run : runs_) {
    const bool whole = run->first == 0 && run->kept == run->stored->count();
    const std::string part = whole ? "" : concat(", of which tokens ", run->first, " to ", run->first + run->kept);
    std::string& content = contents[as_utf8(run->name)];  // several names may become equal; the entry lists them all
    content += (content.empty() ? "" : ", then ") + run->stored->description() + part;
  }
  if (contents.size() <= kMaxListed) return contents;
  std::string all;
  for (const auto& [name, content] : contents) all += name + "\n" + content + "\n";
  return {{concat(contents.size(), " documents"), "checksum " + checksum(all).substr(0, 16)}};
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
