// The JSON schemas that requests follow, compiled for one vocabulary.
//
//   infer::SchemaCache schemas(tokenizer, end_ids);
//   const auto grammar = schemas.compiled(schema);                                    // on any thread
//   engine.add({.prompt = ids, .end_ids = end_ids, .constraint = schemas.constraint(grammar)});  // on the engine's
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "colossal/infer/decoding/token_constraint.h"
#include "colossal/text/grammar/token_mask.h"
#include "colossal/text/tokenizer.h"

namespace colossal::infer {

/// Constrains one request to a grammar. Many requests of one thread may share the masks. The end ids of the masks must
/// be the end ids of the request. A completion matches the grammar unless it ends before an end token: after
/// max_tokens, or at the model's last position.
class GrammarConstraint final : public TokenConstraint {
 public:
  explicit GrammarConstraint(std::shared_ptr<text::TokenMasks> masks) : walk_(std::move(masks)) {}
  /// Errors ("grammar"): a mask beyond text::MaskLimits.
  at::Tensor allowed(int64_t vocabulary) override;
  /// Errors ("grammar"): a token that is not allowed.
  void accept(int64_t token) override { walk_.accept(token); }
  std::shared_ptr<TokenConstraint> copy() const override { return std::make_shared<GrammarConstraint>(*this); }

 private:
  text::TokenWalk walk_;
};

/// A schema with its grammar. It does not change.
struct CompiledSchema {
  std::string schema;
  text::TokenGrammar grammar;
};

struct SchemaCacheOptions {
  size_t max_schemas = 64;  ///< maximum number of compiled schemas that are kept, the last used ones
  /// Maximum number of bytes of all kept grammars, and of all kept machines with their masks. The last used one is kept
  /// whatever its size.
  int64_t max_bytes = int64_t{256} << 20;
  text::MaskLimits limits{};
};

/// Compiles schemas and makes the constraints of requests. It builds the trie of the vocabulary at the first schema,
/// and keeps the last compiled schemas and their masks, which all requests of a schema share.
///
/// Ranks:         all ranks of a layout must call constraint() for the same schemas in the same order. compiled() may
///                be called by one rank only, any number of times: it does not affect masks. So may compile_aside().
/// Thread safety: compiled(), compile_aside(), has() and kept() may be called from several threads at once, also during
///                constraint().
///                Only one thread, that of the engine, may call constraint() and use the constraints.
class SchemaCache {
 public:
  /// `tokenizer` must outlive the cache. Constraints may outlive it. `end_ids` must be those of the requests.
  SchemaCache(const text::Tokenizer& tokenizer, std::vector<int64_t> end_ids, const SchemaCacheOptions& options = {});
  ~SchemaCache();  ///< waits for a schema that is being compiled aside
  SchemaCache(const SchemaCache&) = delete;
  SchemaCache& operator=(const SchemaCache&) = delete;

  /// Returns the grammar of a schema. `name` stands for the schema in messages.
  /// Errors: errors of text::json_grammar() and text::token_grammar(), before anything runs.
  /// Cost: up to about two seconds for a schema at the limits of text::json_grammar(); a look-up if the schema is kept.
  /// If another thread compiles the same schema, it waits for that thread.
  std::shared_ptr<const CompiledSchema> compiled(const std::string& schema, const std::string& name = "the schema");
  /// Compiles a schema on a thread of this object, so that a later compiled() or constraint() waits less. Its errors
  /// are left to those. At most 64 schemas wait; of more the first ones are dropped.
  void compile_aside(const std::string& schema);
  /// Returns a constraint for one completion. If masks of the schema have reached a limit (text::MaskLimits), it makes
  /// new ones. Errors ("grammar"): end ids that text::TokenMasks refuses.
  std::shared_ptr<TokenConstraint> constraint(const std::shared_ptr<const CompiledSchema>& compiled);
  /// Returns the constraint of a schema; null if `schema` is empty. Errors: as compiled() and constraint().
  std::shared_ptr<TokenConstraint> constraint(const std::string& schema, const std::string& name = "the schema");

  /// Returns true if compiled() needs only a look-up.
  bool has(const std::string& schema) const;
  /// Returns the kept schemas, the last used one first.
  std::vector<std::string> kept() const;

 private:
  /// Values by schema, the last used one first.
  template <class Value>
  using Recent = std::list<std::pair<std::string, Value>>;
  std::shared_ptr<const text::TokenTrie> trie();
  std::shared_ptr<const CompiledSchema> compile(const std::string& schema, const std::string& name);
  void run_aside();

  const text::Tokenizer& tokenizer_;
  const std::vector<int64_t> end_ids_;
  const SchemaCacheOptions options_;
  std::once_flag trie_is_built_;
  std::shared_ptr<const text::TokenTrie> trie_;
  mutable std::mutex mutex_;  // guards the members up to masks_
  Recent<std::shared_ptr<const CompiledSchema>> compiled_;
  std::set<std::string> in_progress_;  // schemas that threads compile now
  std::deque<std::string> aside_;      // schemas that wait for thread_
  std::condition_variable changed_;
  bool is_ending_ = false;
  std::thread thread_;                               // none before the first compile_aside()
  Recent<std::shared_ptr<text::TokenMasks>> masks_;  // used by the engine's thread only
};

}  // namespace colossal::infer
