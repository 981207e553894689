#include "colossal/infer/decoding/schema_cache.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "colossal/text/grammar/json_schema.h"

namespace colossal::infer {
namespace {

/// Returns the value of a schema and makes it the last used one; null if it is not kept.
template <class Recent>
auto* recent_value(Recent& recent, const std::string& schema) {
  const auto at = std::find_if(recent.begin(), recent.end(), [&](const auto& entry) { return entry.first == schema; });
  if (at != recent.end()) recent.splice(recent.begin(), recent, at);
  return at == recent.end() ? nullptr : &recent.front().second;
}

/// Drops values from the end, until at most `max_count` are left that take at most `max_bytes`. Keeps the first one.
template <class Recent, class BytesOf>
void drop_oldest(Recent& recent, size_t max_count, int64_t max_bytes, const BytesOf& bytes_of) {
  int64_t bytes = 0;
  size_t count = 0;
  auto at = recent.begin();
  for (; at != recent.end(); ++at, ++count) {
    bytes += bytes_of(*at->second);
    if (count > 0 && (count >= max_count || bytes > max_bytes)) break;
  }
  recent.erase(at, recent.end());
}

}  // namespace

at::Tensor constrained(const at::Tensor& logits, TokenConstraint* constraint) {
  if (!constraint) return logits;
  const at::Tensor allowed = constraint->allowed(logits.size(0)).to(logits.device());
  return logits.masked_fill(allowed.logical_not(), -std::numeric_limits<double>::infinity());
}

// A model may have more logits than its tokenizer has tokens; the ids without a token are never allowed.
at::Tensor GrammarConstraint::allowed(int64_t vocabulary) {
  at::Tensor mask = at::zeros({vocabulary}, at::kBool);
  bool* to = mask.data_ptr<bool>();
  const std::vector<uint64_t>& bits = walk_.allowed();
  const int64_t known = std::min(vocabulary, walk_.vocabulary_size());
  for (int64_t id = 0; id < known; ++id) to[id] = bits[static_cast<size_t>(id) / 64] >> (id % 64) & 1;
  return mask;
}

SchemaCache::SchemaCache(const text::Tokenizer& tokenizer, std::vector<int64_t> end_ids,
                         const SchemaCacheOptions& options)
    : tokenizer_(tokenizer), end_ids_(std::move(end_ids)), options_(options) {}

SchemaCache::~SchemaCache() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

std::shared_ptr<const text::TokenTrie> SchemaCache::trie() {
  std::call_once(trie_is_built_, [&] { trie_ = std::make_shared<const text::TokenTrie>(tokenizer_); });
  return trie_;
}

std::shared_ptr<const CompiledSchema> SchemaCache::compile(const std::string& schema, const std::string& name) {
  text::JsonGrammar made = text::json_grammar(schema, name);
  return std::make_shared<const CompiledSchema>(
      CompiledSchema{schema, text::token_grammar(std::move(made.grammar), made.rule, trie())});
}

// The schema is compiled without the lock, so that a large one does not make other threads wait.
std::shared_ptr<const CompiledSchema> SchemaCache::compiled(const std::string& schema, const std::string& name) {
  std::unique_lock lock(mutex_);
  while (true) {
    if (const auto* known = recent_value(compiled_, schema)) return *known;
    if (in_progress_.insert(schema).second) break;
    changed_.wait(lock);
  }
  lock.unlock();
  struct Progress {
    ~Progress() {
      const std::lock_guard ending(cache.mutex_);
      cache.in_progress_.erase(schema);
      cache.changed_.notify_all();
    }
    SchemaCache& cache;
    const std::string& schema;
  } const progress{*this, schema};  // ends after the schema is kept
  auto own = compile(schema, name);
  const std::lock_guard keeping(mutex_);
  compiled_.emplace_front(schema, own);
  drop_oldest(compiled_, options_.max_schemas, options_.max_bytes, [](const CompiledSchema& kept) {
    return kept.grammar.grammar->bytes() + static_cast<int64_t>(kept.schema.size());
  });
  return own;
}

void SchemaCache::compile_aside(const std::string& schema) {
  constexpr size_t kMostAside = 64;
  const std::lock_guard lock(mutex_);
  if (recent_value(compiled_, schema) || in_progress_.contains(schema)) return;
  if (aside_.size() == kMostAside) aside_.pop_front();
  aside_.push_back(schema);
  if (!thread_.joinable()) thread_ = std::thread([this] { run_aside(); });
  changed_.notify_all();
}

void SchemaCache::run_aside() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return is_ending_ || !aside_.empty(); });
    if (is_ending_) return;
    const std::string schema = std::move(aside_.front());
    aside_.pop_front();
    lock.unlock();
    try {
      compiled(schema);
    } catch (const std::exception&) {  // the request that needs the schema compiles it and gets the error
    }
    lock.lock();
  }
}

std::shared_ptr<TokenConstraint> SchemaCache::constraint(const std::shared_ptr<const CompiledSchema>& compiled) {
  auto* known = recent_value(masks_, compiled->schema);
  if (!known) known = &masks_.emplace_front(compiled->schema, nullptr).second;
  if (!*known || (*known)->is_exhausted())
    *known = std::make_shared<text::TokenMasks>(compiled->grammar, end_ids_, options_.limits);
  const std::shared_ptr<text::TokenMasks> masks = *known;
  drop_oldest(masks_, options_.max_schemas, options_.max_bytes,
              [](const text::TokenMasks& kept) { return kept.bytes(); });
  return std::make_shared<GrammarConstraint>(masks);
}

std::shared_ptr<TokenConstraint> SchemaCache::constraint(const std::string& schema, const std::string& name) {
  return schema.empty() ? nullptr : constraint(compiled(schema, name));
}

bool SchemaCache::has(const std::string& schema) const {
  const std::lock_guard lock(mutex_);
  return std::any_of(compiled_.begin(), compiled_.end(), [&](const auto& kept) { return kept.first == schema; });
}

std::vector<std::string> SchemaCache::kept() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> schemas;
  for (const auto& [schema, compiled] : compiled_) schemas.push_back(schema);
  return schemas;
}

}  // namespace colossal::infer
