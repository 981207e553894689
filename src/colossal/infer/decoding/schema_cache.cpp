#include "colossal/infer/decoding/schema_cache.h"

#include <algorithm>

#include "colossal/infer/decoding/grammar_constraint.h"
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

SchemaCache::SchemaCache(const text::Tokenizer& tokenizer, std::vector<int64_t> end_ids,
                         const SchemaCacheOptions& options)
    : tokenizer_(tokenizer), end_ids_(std::move(end_ids)), options_(options) {}

std::shared_ptr<const text::TokenTrie> SchemaCache::trie() {
  std::call_once(trie_is_built_, [&] { trie_ = std::make_shared<const text::TokenTrie>(tokenizer_); });
  return trie_;
}

// The schema is compiled without the lock, so that a large one does not make other threads wait. If two threads compile
// the same schema, both get the grammar of the first one that ends.
std::shared_ptr<const CompiledSchema> SchemaCache::compiled(const std::string& schema, const std::string& name) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto* known = recent_value(compiled_, schema)) return *known;
  }
  text::JsonGrammar made = text::json_grammar(schema, name);
  auto own = std::make_shared<const CompiledSchema>(
      CompiledSchema{schema, text::token_grammar(std::move(made.grammar), made.rule, trie())});
  const std::lock_guard lock(mutex_);
  if (const auto* known = recent_value(compiled_, schema)) return *known;
  compiled_.emplace_front(schema, own);
  drop_oldest(compiled_, options_.max_schemas, options_.max_bytes, [](const CompiledSchema& kept) {
    return kept.grammar.grammar->bytes() + static_cast<int64_t>(kept.schema.size());
  });
  return own;
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
