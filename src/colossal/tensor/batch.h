// A batch is a list of named fields: ids and labels of a text, images and their classes, or what a program brings.
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
// Code that cuts, copies or divides a batch reads the kinds of the dimensions. Only samples, which make a field, and
// models and losses, which read it, know its name.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace colossal::tensor {

/// How the ranks of a model divide a dimension.
enum class Dim : uint8_t {
  Row,      ///< samples: a micro-batch has some of them, and layouts that split rows divide them
  Token,    ///< tokens of a row: divided by the cut of the batch, or evenly if the length differs from Batch::tokens()
  Feature,  ///< features of a token: divided as the features of hidden states between blocks
  Other,    ///< not divided
};

struct Field {
  at::Tensor tensor;
  std::vector<Dim> dims;             ///< one entry per dimension; the first is Row, and no other one
  std::optional<int64_t> ignored{};  ///< of labels: the value that does not count
  bool stays_whole = false;          ///< the tensor stays on the host, and its tokens are not cut in advance
};

/// Tokens [first, first + size) of a row.
struct TokenRun {
  int64_t first, size;
  bool operator==(const TokenRun&) const = default;
};

/// A copy shares the tensors. Thread safety: const members may be called from several threads.
class Batch {
 public:
  struct Named {
    std::string name;
    Field field;
  };

  /// Adds a field after those that the batch has.
  /// Errors ("data"): an empty name or one that is taken, an undefined tensor, kinds that do not fit its dimensions,
  ///                  and a number of rows that differs from that of the fields before.
  void add(const std::string& name, Field field);

  /// Returns the field of that name. Errors ("data"): there is none; the message lists the names of the batch.
  const Field& field(std::string_view name) const;
  /// Returns the tensor of that field. Errors: those of field().
  const at::Tensor& at(std::string_view name) const { return field(name).tensor; }
  /// Returns the tensor of that field, or an undefined one if there is no such field.
  at::Tensor find(std::string_view name) const;
  /// All fields in the order in which they were added.
  const std::vector<Named>& fields() const { return fields_; }

  /// The number of rows of every field; 0 of a batch without fields.
  int64_t rows() const;
  /// Returns true if a field has a dimension of kind Token.
  bool has_tokens() const { return tokens() > 0; }
  /// The length of the first dimension of kind Token, which the cut of the batch divides; 0: there is none.
  int64_t tokens() const;

  /// Rows [first, first + rows) of all fields, as views. Errors ("data"): rows that the batch does not have.
  Batch part(int64_t first, int64_t rows) const;
  /// The batch with change(field) in place of each tensor. The kinds of dimensions stay. Errors: those of add().
  Batch map(const std::function<at::Tensor(const Field&)>& change) const;

  /// The reader of the batch takes ids and labels of these tokens alone, but counts the labels of whole rows. Samples
  /// that find these tokens without the rest of the row may leave the others 0. A label that is left out must count
  /// exactly where the true one does, so samples that ignore some labels find those of whole rows.
  /// Empty: the reader takes all tokens. part() and map() keep the list.
  std::vector<TokenRun> wanted{};

 private:
  std::vector<Named> fields_;
};

}  // namespace colossal::tensor
