#include "colossal/text/tokenizer.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <filesystem>
#include <mutex>
#include <system_error>
#include <thread>

#include "colossal/base/error.h"
#include "colossal/base/input_file.h"
#include "colossal/base/json_file.h"
#include "colossal/base/model_path.h"
#include "colossal/formats/gguf_file.h"
#include "colossal/text/tokenizers/byte.h"
#include "colossal/text/tokenizers/gguf_vocabulary.h"
#include "colossal/text/tokenizers/tokenizer_files.h"
#include "colossal/text/unicode.h"

namespace colossal::text {

PlacedTokens Tokenizer::encode_placed(std::string_view text) const {
  PlacedTokens placed{encode(text), {}};
  size_t at = 0;
  for (const int64_t id : placed.ids) {
    placed.begins.push_back(std::min(at, text.size()));
    const std::string part = piece(id);
    at += part.empty() ? spelling(id).size() : part.size();
  }
  return placed;
}

std::vector<int64_t> Tokenizer::encode_document(std::string_view text) const {
  std::vector<int64_t> ids = encode(text);
  if (end_id() >= 0) ids.push_back(end_id());
  return ids;
}

Encoding Tokenizer::encode_whole(std::string_view text) const {
  Encoding whole{encode(text), {}};
  whole.types.assign(whole.ids.size(), 0);
  return whole;
}

Encoding Tokenizer::encode_pair(std::string_view first, std::string_view second) const {
  Encoding pair = encode_whole(first);
  const std::vector<int64_t> more = encode_whole(second).ids;
  pair.ids.insert(pair.ids.end(), more.begin(), more.end());
  pair.types.resize(pair.ids.size(), 1);
  return pair;
}

std::string Tokenizer::decode(const std::vector<int64_t>& ids, bool with_special) const {
  std::string text;
  for (const int64_t id : ids) {
    const std::string part = piece(id);
    text += part.empty() && with_special ? spelling(id) : part;
  }
  return text;
}

void for_each_index(size_t count, int threads, const std::function<void(size_t)>& work) {
  std::atomic<size_t> next{0};
  std::exception_ptr failed;
  size_t first_failed = count;
  std::mutex mutex;
  const auto take = [&] {
    size_t i = 0;
    try {
      while ((i = next.fetch_add(1)) < count) work(i);
    } catch (...) {
      const std::lock_guard lock(mutex);
      // Indices are handed out in order, so all calls with a smaller index have started. The smallest failing index is
      // therefore reported in every run.
      if (i < first_failed) failed = std::current_exception();
      first_failed = std::min(first_failed, i);
      next = count;
    }
  };
  {
    std::vector<std::jthread> others;
    const size_t wanted = std::min(count, static_cast<size_t>(std::max(threads, 1)));
    others.reserve(wanted);
    try {
      while (others.size() + 1 < wanted) others.emplace_back(take);
    } catch (const std::system_error&) {  // the system starts no more threads, so the threads that started do all the
                                          // work
    }
    take();
  }
  if (failed) std::rethrow_exception(failed);
}

std::vector<std::vector<int64_t>> encode_all(const Tokenizer& tokenizer, const std::vector<std::string_view>& texts,
                                             int threads) {
  std::vector<std::vector<int64_t>> ids(texts.size());
  for_each_index(texts.size(), threads, [&](size_t i) { ids[i] = tokenizer.encode(texts[i]); });
  return ids;
}

namespace {

/// Returns the file of a folder that defines its tokenizer, in this order of preference; empty if there is none.
std::string file_in(const std::filesystem::path& folder) {
  const auto has = [&](const char* name) { return std::filesystem::exists(folder / name); };
  for (const char* name : {"tokenizer.json", "tokenizer.model", "spiece.model"})
    if (has(name)) return (folder / name).string();
  if (has("vocab.json") && has("merges.txt")) return (folder / "vocab.json").string();
  return has("vocab.txt") ? (folder / "vocab.txt").string() : "";
}

/// Returns the first 4 KiB of the file.
std::string read_front(const std::string& path) {
  const auto file = InputFile::open(path);
  std::string front(static_cast<size_t>(std::min<int64_t>(file->size(), 4096)), '\0');
  file->read(0, static_cast<int64_t>(front.size()), front.data());
  return front;
}

}  // namespace

bool has_tokenizer(const std::string& folder) {
  return formats::is_gguf(folder) ? formats::GgufFile(folder).has("tokenizer.ggml.model") : !file_in(folder).empty();
}

std::string folder_of_tokenizer(const std::string& name) {
  std::error_code ignored;
  if (name == "bytes") return "";
  if (formats::is_gguf(name) || !std::filesystem::is_regular_file(name, ignored)) return name;
  const std::string folder = std::filesystem::path(name).parent_path().string();
  return folder.empty() ? "." : folder;
}

namespace {

std::unique_ptr<Tokenizer> make_tokenizer_of(const std::string& name, Scope scope) {
  namespace fs = std::filesystem;
  if (name == "bytes") return std::make_unique<ByteTokenizer>();
  std::error_code none;
  require(
      fs::exists(name, none), "tokenizer", "there is no ", name, download_advice(name, ""),
      ": a tokenizer must be \"bytes\", or a folder with a tokenizer.json, tokenizer.model, spiece.model, vocab.json "
      "and merges.txt or vocab.txt, or such a file, or one of tiktoken's ranks, or a GGUF file");
  if (formats::is_gguf(name)) return read_gguf_tokenizer(name, scope);
  const bool is_folder = fs::is_directory(name, none);
  const std::string file = is_folder ? file_in(name) : name;
  if (file.empty())
    return read_hugging_face_tokenizer(name, scope);  // the call throws an error that names the missing files
  const std::string ending = fs::path(file).extension().string();
  if (ending == ".json" || ending == ".txt") return read_hugging_face_tokenizer(file, scope);
  return looks_like_tiktoken(read_front(file)) ? read_tiktoken(file) : read_sentence_piece(file, scope);
}

}  // namespace

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name) { return make_tokenizer_of(name, Scope::Text); }

std::unique_ptr<Tokenizer> make_part_tokenizer(const std::string& name) { return make_tokenizer_of(name, Scope::Part); }

namespace {

constexpr char kReplacementText[] = "\xEF\xBF\xBD";  // U+FFFD

/// Moves the complete characters at the front of `pending` to the result.
std::string take_complete(std::string& pending) {
  std::string text;
  size_t at = 0;
  while (at < pending.size()) {
    const Utf8Character next = first_character(std::string_view(pending).substr(at));
    if (next.kind == Utf8::Incomplete) break;
    text += next.kind == Utf8::Complete ? pending.substr(at, next.length) : kReplacementText;
    at += next.length;
  }
  pending.erase(0, at);
  return text;
}

}  // namespace

std::string description_of(const Tokenizer& tokenizer, int64_t id) {
  const std::string spelling = id < tokenizer.vocabulary_size() ? tokenizer.spelling(id) : "";
  return spelling.empty() ? concat("token ", id) : concat(printable(spelling), " (", id, ")");
}

std::string valid_utf8(std::string_view bytes) {
  std::string pending(bytes), text = take_complete(pending);
  return pending.empty() ? text : text + kReplacementText;
}

std::string TextStream::push(int64_t id) {
  // An id beyond the vocabulary stands for no text: only the model's embedding has it (padding, sentinels).
  if (id < tokenizer_.vocabulary_size()) pending_ += tokenizer_.piece(id);
  return take_complete(pending_);
}

std::string TextStream::finish() {
  std::string text = take_complete(pending_);
  if (!pending_.empty()) text += kReplacementText;
  pending_.clear();
  return text;
}

}  // namespace colossal::text
