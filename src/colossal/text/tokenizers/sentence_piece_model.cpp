#include "colossal/text/tokenizers/sentence_piece_model.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <queue>
#include <set>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"
#include "colossal/formats/protobuf.h"
#include "colossal/text/tokenizers/normalizer.h"

namespace colossal::text {
namespace {

using File = SentencePieceFile;

File::Piece parse_piece(std::string_view message) {
  File::Piece piece;
  for (formats::ProtobufReader field(message); field.next();) {
    if (field.number() == 1) piece.text = field.bytes();
    if (field.number() == 2) piece.score = field.real();
    if (field.number() == 3) {
      require(field.integer() >= 1 && field.integer() <= 6, "tokenizer", "the type of a piece must be in [1, 6]: got ",
              field.integer());
      piece.type = static_cast<File::Type>(field.integer());
    }
  }
  require(!piece.text.empty(), "tokenizer", "a piece must not be empty");
  require(std::isfinite(piece.score), "tokenizer", "the score of ", printable(piece.text), " must be finite");
  return piece;
}

void parse_trainer(std::string_view message, File& file) {
  for (formats::ProtobufReader field(message); field.next();) {
    switch (field.number()) {
      case 3:
        require(field.integer() >= 1 && field.integer() <= 4, "tokenizer",
                "model_type must be 1 (unigram), 2 (BPE), 3 (word) or 4 (char): got ", field.integer());
        file.kind = static_cast<File::Kind>(field.integer());
        break;
      case 24:
        file.spaces_behind = field.boolean();
        break;
      case 35:
        file.byte_fallback = field.boolean();
        break;
      case 44:
        file.unknown_surface = field.bytes();
        break;
      case 46:
        file.begin = field.bytes();
        break;
      case 47:
        file.end = field.bytes();
        break;
      default:
        break;
    }
  }
}

void parse_normalizer(std::string_view message, File& file) {
  for (formats::ProtobufReader field(message); field.next();) {
    if (field.number() == 2) file.charsmap = field.bytes();
    if (field.number() == 3) file.add_dummy_prefix = field.boolean();
    if (field.number() == 4) file.remove_extra_whitespaces = field.boolean();
    if (field.number() == 5) file.escape_whitespaces = field.boolean();
  }
}

void check(const File& file) {
  std::set<std::string_view> seen, bytes;
  int unknown = 0;
  for (const File::Piece& piece : file.pieces) {
    require(seen.insert(piece.text).second, "tokenizer", "the piece ", printable(piece.text), " occurs twice");
    unknown += piece.type == File::Type::Unknown;
    if (piece.type == File::Type::Byte) bytes.insert(piece.text);
  }
  require(unknown == 1, "tokenizer", "one piece must be the unknown one: got ", unknown);
  require(bytes.empty() || file.byte_fallback, "tokenizer", "pieces are bytes, but byte_fallback is off");
  if (!file.byte_fallback) return;
  for (int byte = 0; byte < 256; ++byte) {
    const std::string name = byte_token(byte);
    require(bytes.count(name), "tokenizer", "byte_fallback is on, but no piece is ", name);
  }
  require(bytes.size() == 256, "tokenizer", "256 pieces must be bytes: got ", bytes.size());
}

constexpr float kModelPenalty = 10;

struct Pair {  // two neighbouring symbols that may be joined
  float score;
  int64_t left, right;
  size_t size;  // combined size in bytes; if it differs from the current size, one of the two changed
  bool operator<(const Pair& other) const { return score != other.score ? score < other.score : left > other.left; }
};

struct Symbol {
  std::string_view text;
  int64_t previous, next;  // -1 = none
  bool frozen;             // user-defined symbols are never joined
};

}  // namespace

SentencePieceFile SentencePieceFile::parse(std::string_view bytes) {
  File file;
  for (formats::ProtobufReader field(bytes); field.next();) {
    if (field.number() == 1) file.pieces.push_back(parse_piece(field.bytes()));
    if (field.number() == 2) parse_trainer(field.bytes(), file);
    if (field.number() == 3) parse_normalizer(field.bytes(), file);
    if (field.number() == 5)
      for (formats::ProtobufReader part(field.bytes()); part.next();)
        require(part.number() != 2 || part.bytes().empty(), "tokenizer", "a denormalizer is not supported");
  }
  require(file.pieces.size() < static_cast<size_t>(Vocabulary::kMaxId), "tokenizer",
          "too many pieces: ", file.pieces.size());
  check(file);
  return file;
}

size_t character_length(std::string_view text) {
  static constexpr unsigned char kLengths[] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 3, 4};
  return std::min<size_t>(kLengths[static_cast<unsigned char>(text[0]) >> 4], text.size());
}

SentencePieceModel::SentencePieceModel(const SentencePieceFile& file)
    : file_(file), min_score_(FLT_MAX), max_score_(FLT_MIN) {
  for (size_t i = 0; i < file_.pieces.size(); ++i) {
    const SentencePieceFile::Piece& piece = file_.pieces[i];
    const auto id = static_cast<int32_t>(i);
    const bool is_text = piece.type == Type::Normal || piece.type == Type::UserDefined || piece.type == Type::Unused;
    (is_text ? pieces_ : reserved_).emplace(piece.text, id);
    if (is_text && file_.kind == SentencePieceFile::Kind::Unigram) trie_.add(piece.text, id);
    if (piece.type == Type::UserDefined) user_defined_.add(piece.text, id);
    if (piece.type == Type::Unknown) unknown_ = id;
    if (piece.type != Type::Normal) continue;
    min_score_ = std::min(min_score_, piece.score);
    max_score_ = std::max(max_score_, piece.score);
  }
}

size_t SentencePieceModel::user_defined(std::string_view text) const {
  size_t longest = 0;
  user_defined_.prefixes(text, [&](size_t length, int32_t) { longest = length; });
  return longest;
}

int32_t SentencePieceModel::id_of(std::string_view piece) const {
  const auto reserved = reserved_.find(piece);
  if (reserved != reserved_.end()) return reserved->second;
  const auto found = pieces_.find(piece);
  return found == pieces_.end() ? unknown_ : found->second;
}

std::vector<SentencePieceModel::Part> SentencePieceModel::cut(std::string_view text) const {
  switch (file_.kind) {
    case SentencePieceFile::Kind::Unigram:
      return cut_unigram(text);
    case SentencePieceFile::Kind::Bpe:
      return cut_bpe(text);
    case SentencePieceFile::Kind::Word:
      return cut_words(text);
    default:
      return cut_characters(text);
  }
}

/// Sums are in fp32, as in sentencepiece 0.2.3, because rounding may decide between two segmentations. (Releases up to
/// 0.2.1 compared a piece's sum in fp64 before they rounded it.)
std::vector<SentencePieceModel::Part> SentencePieceModel::cut_unigram(std::string_view text) const {
  struct Node {
    float score = 0;
    int64_t begin = -1;
    int32_t id = -1;
  };
  std::vector<Node> ends(text.size() + 1);  // the best path to each position
  const auto offer = [&](size_t begin, size_t end, int32_t id, float score) {
    Node& node = ends[end];
    if (node.begin < 0 || score > node.score) node = {score, static_cast<int64_t>(begin), id};
  };
  const float unknown_score = min_score_ - kModelPenalty;
  for (size_t at = 0; at < text.size();) {
    const float here = ends[at].score;
    const size_t length = character_length(text.substr(at));
    bool is_piece = false;
    trie_.prefixes(text.substr(at), [&](size_t size, int32_t id) {
      if (type_of(id) == Type::Unused) return;
      const float score = type_of(id) == Type::UserDefined
                              ? static_cast<float>(size) * max_score_ - 0.1F  // always chosen
                              : file_.pieces[id].score;
      offer(at, at + size, id, score + here);
      is_piece |= size == length;
    });
    if (!is_piece) offer(at, at + length, unknown_, unknown_score + here);
    at += length;
  }
  std::vector<Part> parts;
  for (size_t end = text.size(); end > 0; end = static_cast<size_t>(ends[end].begin)) {
    const auto begin = static_cast<size_t>(ends[end].begin);
    parts.push_back({text.substr(begin, end - begin), ends[end].id});
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<SentencePieceModel::Part> SentencePieceModel::cut_bpe(std::string_view text) const {
  std::vector<Symbol> chain;
  std::priority_queue<Pair> queue;
  StringIds unused;  // joins that are undone at the end, each with the size of its left part
  const auto offer = [&](int64_t left, int64_t right) {
    if (left < 0 || right < 0 || chain[left].frozen || chain[right].frozen) return;
    const std::string_view both(chain[left].text.data(), chain[left].text.size() + chain[right].text.size());
    const auto found = pieces_.find(both);
    if (found == pieces_.end()) return;
    queue.push({file_.pieces[found->second].score, left, right, both.size()});
    if (type_of(found->second) == Type::Unused)
      unused[std::string(both)] = static_cast<int32_t>(chain[left].text.size());
  };
  for (size_t at = 0; at < text.size();) {
    const size_t own = user_defined(text.substr(at)), length = own ? own : character_length(text.substr(at));
    const auto index = static_cast<int64_t>(chain.size());
    chain.push_back({text.substr(at, length), index - 1, at + length < text.size() ? index + 1 : -1, own > 0});
    at += length;
  }
  for (size_t i = 1; i < chain.size(); ++i) offer(static_cast<int64_t>(i) - 1, static_cast<int64_t>(i));
  while (!queue.empty()) {
    const Pair top = queue.top();
    queue.pop();
    Symbol &left = chain[top.left], &right = chain[top.right];
    if (left.text.empty() || right.text.empty() || left.text.size() + right.text.size() != top.size) continue;
    left.text = std::string_view(left.text.data(), top.size);
    left.next = right.next;
    if (right.next >= 0) chain[right.next].previous = top.left;
    right.text = {};
    offer(left.previous, top.left);
    offer(top.left, left.next);
  }
  std::vector<Part> parts;
  std::vector<std::string_view> rest;  // parts of an unused piece, the last part first
  for (int64_t at = chain.empty() ? -1 : 0; at >= 0; at = chain[at].next) {
    for (rest = {chain[at].text}; !rest.empty();) {
      const std::string_view part = rest.back();
      rest.pop_back();
      const int32_t id = id_of(part);
      const auto split = type_of(id) == Type::Unused ? unused.find(part) : unused.end();
      if (split == unused.end()) {
        parts.push_back({part, id});
        continue;
      }
      rest.push_back(part.substr(static_cast<size_t>(split->second)));
      rest.push_back(part.substr(0, static_cast<size_t>(split->second)));
    }
  }
  return parts;
}

std::vector<SentencePieceModel::Part> SentencePieceModel::cut_characters(std::string_view text) const {
  std::vector<Part> parts;
  for (size_t at = 0; at < text.size();) {
    const size_t own = user_defined(text.substr(at)), length = own ? own : character_length(text.substr(at));
    parts.push_back({text.substr(at, length), id_of(text.substr(at, length))});
    at += length;
  }
  return parts;
}

/// Splits before each mark of a space, so that a word is a mark and the text up to the next one.
std::vector<SentencePieceModel::Part> SentencePieceModel::cut_words(std::string_view text) const {
  std::vector<Part> parts;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = text.find(kMetaspace, begin + 1);
    if (end == std::string_view::npos) end = text.size();
    const auto found = pieces_.find(text.substr(begin, end - begin));  // a control symbol's name is plain text
    parts.push_back({text.substr(begin, end - begin), found == pieces_.end() ? unknown_ : found->second});
    begin = end;
  }
  return parts;
}

}  // namespace colossal::text
