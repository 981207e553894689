// A batch is a list of named fields: ids and labels of a text, images and their classes, or fields that a program adds.
//
//   using tensor::Dim;
//   tensor::Batch batch;
//   batch.add("ids", {ids, {Dim::Row, Dim::Token}});                                      // [B, S]
//   batch.add("labels", {labels, {Dim::Row, Dim::Token}, /*ignored=*/-100});              // [B, S]
//   batch.add("weights", {weights, {Dim::Row, Dim::Other}});                              // [B, 3]
//   const tensor::Batch half = batch.part(0, batch.rows() / 2);                           // views
//   const tensor::Batch there = batch.map([&](const tensor::Field& f) { return f.tensor.to(device); });
//   const at::Tensor& read = there.at("ids");
//
// Code that cuts, copies or shards a batch reads only the kinds of the dimensions (Dim). The names of fields are used
// only by samples, which make the fields, and by models and losses, which read them.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace colossal::tensor {

/// How the ranks of a model shard a dimension.
enum class Dim : uint8_t {
  Row,      ///< samples: a micro-batch has some of them; layouts that split rows shard them
  Token,    ///< tokens of a row: sharded as the batch is cut, or evenly if the length differs from Batch::tokens()
  Feature,  ///< features of a token: sharded as the features of hidden states between layers are
  Other,    ///< any other dimension: never sharded
};

/// One tensor of a batch, with the kinds of its dimensions.
struct Field {
  at::Tensor tensor;
  std::vector<Dim> dims;             ///< kind of each dimension; exactly the first one is Row
  std::optional<int64_t> ignored{};  ///< label value that the loss skips; absent = no such value
  bool stays_whole = false;          ///< true: the tensor stays on the host, and its tokens are not cut in advance
};

/// A range of tokens of a row: [first, first + size).
struct TokenRun {
  int64_t first, size;
  bool operator==(const TokenRun&) const = default;
};

/// The fields of one batch, all with the same number of rows. A copy shares the tensors.
/// Thread safety: const members may be called from several threads.
class Batch {
 public:
  struct Named {
    std::string name;
    Field field;
  };

  /// Appends a field.
  /// Errors ("data"): an empty or duplicate name, an undefined tensor, kinds that do not match its dimensions, or a
  ///                  number of rows that differs from that of the fields already added.
  void add(const std::string& name, Field field);

  /// Returns a batch that has `field` under this name, in place of a field of that name if there is one. Errors: as
  /// add().
  Batch with(const std::string& name, Field field) const;
  /// Returns a batch without the field of this name, if there is one.
  Batch without(std::string_view name) const;

  /// Returns the field with this name. Errors ("data"): no such field; the message lists the names of the batch.
  const Field& field(std::string_view name) const;
  /// Returns the tensor of the field with this name. Errors: as field().
  const at::Tensor& at(std::string_view name) const { return field(name).tensor; }
  /// Returns the tensor of the field with this name, or an undefined tensor if there is no such field.
  at::Tensor find(std::string_view name) const;
  /// Returns all fields in the order in which they were added.
  const std::vector<Named>& fields() const { return fields_; }

  /// Returns the number of rows, which all fields share; 0 = the batch has no fields.
  int64_t rows() const;
  /// Returns true if a field has a dimension of kind Token.
  bool has_tokens() const { return tokens() > 0; }
  /// Returns the length of the first dimension of kind Token, by which the batch is cut; 0 = no field has tokens.
  int64_t tokens() const;

  /// Returns rows [first, first + rows) of all fields, as views. Errors ("data"): rows that the batch does not have.
  Batch part(int64_t first, int64_t rows) const;
  /// Returns a batch with change(field) in place of each tensor. The kinds of the dimensions are kept. Errors: as
  /// add().
  Batch map(const std::function<at::Tensor(const Field&)>& change) const;

  /// Token ranges whose ids and labels the reader of this batch uses; empty = all tokens. The reader still counts the
  /// labels of whole rows.
  /// Samples that can find these tokens without the other tokens of the row may leave the others 0. A placeholder label
  /// must count exactly if the true label counts, so samples that ignore some labels must find the labels of whole
  /// rows. part() and map() keep this list.
  std::vector<TokenRun> wanted{};

 private:
  std::vector<Named> fields_;
};

/// Returns a batch of the rows of all `parts`, in their order: copies. Its fields are those of the first part, and the
/// other parts must have them, with sizes that agree but for the rows. Errors ("data"): no parts; a part that lacks
/// one.
Batch joined_rows(const std::vector<Batch>& parts);

}  // namespace colossal::tensor
