// Parameters of a model: leaves of autograd with a name, a ShardSpec over the mesh and a weight decay factor.
//
//   nn::Parameters parameters(coordinates, {.treatment = [](const std::string& name) {
//     return nn::Treatment{.trains = name != "embedding.weight"};                    // frozen, but saved
//   }});
//   const auto rows = tensor::ShardSpec::split({64, 16}, 0, {"tensor"});             // divided over the axis "tensor"
//   nn::Parameter& weight = parameters.add("embedding.weight", rows, nn::Init::normal(0.02), /*decay=*/true);
//   nn::Buffer& bias = parameters.buffer("blocks.0.router.bias", tensor::ShardSpec::whole({4}), at::kFloat);   // zeros
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "colossal/nn/deferred_gradients.h"
#include "colossal/tensor/mesh_coordinates.h"
#include "colossal/tensor/shard_spec.h"

namespace colossal::nn {

class FrozenForm;  // nn/frozen_form.h
class Parameters;
class Product;

/// How initial values are drawn. They depend only on (seed, name, logical index), so every layout starts from the same
/// model.
struct Init {
  enum class Kind { Zeros, Ones, Normal, Uniform, Constant } kind = Kind::Zeros;
  double spread = 0;  ///< standard deviation of Normal, largest magnitude of Uniform, value of Constant
  static Init zeros() { return {Kind::Zeros, 0}; }
  static Init ones() { return {Kind::Ones, 0}; }
  static Init normal(double deviation) { return {Kind::Normal, deviation}; }
  static Init uniform(double bound) { return {Kind::Uniform, bound}; }
  static Init constant(double value) { return {Kind::Constant, value}; }
};

/// The rows [first, end) of a parameter: indices of dimension 0 of the logical tensor.
struct RowRange {
  int64_t first = 0, end = std::numeric_limits<int64_t>::max();
  bool operator==(const RowRange&) const = default;
};

/// How a run treats a parameter.
struct Treatment {
  /// False = frozen: the parameter has no gradient, master weight or optimizer state, and no gradient is reduced for it
  bool trains = true;
  /// False = not in checkpoints: its value is read from model.from again, or drawn from the seed again
  bool saved = true;
  /// The rows that train if `trains` is true; rows beyond the tensor are ignored. The other rows keep their values to
  /// the bit: optimizers neither update nor decay them and hold no moments of them that checkpoints save, and their
  /// gradients count in no norm. These gradients are still computed and reduced
  RowRange rows{};
};

/// One trained or frozen tensor of a model, with the part of it that this rank holds.
struct Parameter {
  /// Dotted path, the same under every layout: "blocks.3.attention.qkv.weight"; in a model with a name it follows that
  /// name: "reference.blocks.3.attention.qkv.weight"
  std::string name;
  /// This rank's part, of shape spec.local_shape(coordinates). Padding holds zeros and keeps them through training.
  /// Undefined = another rank holds the parameter
  at::Tensor value;
  tensor::ShardSpec spec;
  double decay = 1;  ///< factor of optimizer.weight_decay; 0 for norms and biases
  Init init{};
  double rate = 1;  ///< factor of the learning rate
  /// True if it maps features to features: the weight of a linear layer or the kernel of a convolution inside the
  /// model. False for a table, a head or a vector. Rules for matrices (optim/muon) apply only to these. For an adopted
  /// module (adopt()) it is a guess, which is also true for a head
  bool hidden_matrix = false;
  /// True if it is read outside of its product, which then keeps it: the table of an embedding, even if a tied head
  /// also multiplies with it; the projection from latents (nn/latent_heads.h)
  bool looked_up = false;
  /// True if dimension 0 counts matrices of their own, the experts of a mixture. Optimizers treat each as a matrix
  bool is_stack = false;
  /// The stack of which this is one matrix, if it is passed to a wrapper of products (nn/grouped_product.h); null = it
  /// is a parameter of its own. A wrapper of one matrix declares no parameters; one of all matrices is an ExpertWrapper
  const Parameter* stack = nullptr;
  int64_t stack_index = 0;  ///< index of the matrix in the part of the stack that this rank holds
  /// True if several blocks use it. If these are recomputed in backward, each of them contributes a part of its
  /// gradient
  bool is_shared = false;
  Treatment treatment{};  ///< known on every rank, even where `value` is undefined
  /// True if a wrapper of a product declared it (Parameters::Options::products), such as a matrix of an adapter, or if
  /// it is of a head of values (models::with_values). Folders of other programs do not contain it
  bool is_added = false;
  /// True if `value` has a shape but no memory yet (without_memory()): a chunk store begins with zeros, and its owner
  /// sets the values afterwards
  bool is_empty = false;
  /// True if it is the weight of a layer between blocks, such as a nn::Dense, whose product only adapters wrap. The
  /// layer multiplies with the rows of all shards (tensor::DimSplit::shards)
  bool between_blocks = false;
  std::string model{};  ///< name of its model (Parameters::Options::model)

  /// Returns the rows of Treatment::rows that it has: 0 <= first <= end <= size of dimension 0. {0, 1} for a tensor
  /// without dimensions.
  RowRange trained_rows() const;
  /// Returns its number of logical elements that train; 0 if it is frozen.
  int64_t trained_numel() const;
  /// Returns its name within its model.
  std::string own_name() const { return model.empty() ? name : name.substr(model.size() + 1); }
  /// Returns its name in a checkpoint. The prefix "model." stands for the model without a name.
  std::string saved_name() const { return model.empty() ? "model." + name : name; }
};

/// How checkpoints and inference treat a buffer.
enum class BufferUse : uint8_t {
  Model,     ///< part of the model: saved, imported and exported with the parameters
  Training,  ///< part of the training state: saved next to the parameters, not read by inference
};

/// A tensor of a model that has no gradient and may have another dtype than the parameters. No optimizer updates it:
/// layers write its value in place. ZeRO does not shard it and the memory tiers do not move it. It uses only the
/// members name, model, value and spec of Parameter.
struct Buffer : Parameter {
  BufferUse use = BufferUse::Model;
  /// Returns its name in a checkpoint.
  std::string saved_name() const { return use == BufferUse::Model ? Parameter::saved_name() : name; }
};

/// Returns a tensor of that shape without memory. It stands for a value that is stored elsewhere, or not yet allocated.
at::Tensor without_memory(at::IntArrayRef shape, const at::TensorOptions& options);

/// The parameters of one rank, in order of creation, of one model or of several (begin_model()). Addresses of
/// parameters stay valid when more are added.
///
/// In a pipeline every rank declares all parameters of the models, but holds only those that its stages use. Iteration
/// visits only the held ones.
class Parameters {
 public:
  struct Options {
    at::ScalarType dtype = at::kFloat;
    at::Device device = at::kCPU;
    uint64_t seed = 0;
    /// Name of the model. The names of its parameters and buffers start with it and a dot; "" = the names are used as
    /// given. The functions below are passed names without it. Initial values are drawn as in a model without a name.
    std::string model{};
    /// Returns ShardSpec::stages of the parameter of that name; null = no pipeline.
    std::function<std::vector<int>(const std::string& name)> stages{};
    /// Returns the treatment of the parameter of that name; null = all are trained and saved. It is called on every
    /// rank for every parameter of the model when it is declared, so all ranks must return the same.
    std::function<Treatment(const std::string& name)> treatment{};
    /// True = values have a shape but no memory, and are not drawn. A memory::ChunkStore allocates and draws them, or a
    /// reader of a saved model allocates and reads them. A rank that keeps a shard of the model then never holds the
    /// whole model.
    bool without_memory = false;
    /// Returns the product of the linear layer with this weight: a wrapper of `product`, or `product` itself. It may
    /// declare parameters and buffers of its own in `parameters`. It is called on every rank, in the order in which
    /// layers are made, for every weight of layers inside blocks (hidden matrices, convolutions), of layers between
    /// blocks (Parameter::between_blocks) and of the logits of language models. If another stage of a pipeline holds
    /// the weight, weight.value is undefined and the result is not multiplied with.
    using ProductOf = std::function<std::shared_ptr<const Product>(std::shared_ptr<const Product> product,
                                                                   const Parameter& weight, Parameters& parameters)>;
    /// Functions that wrap the products. The first wraps the product of the layout, each other one the previous result.
    std::vector<ProductOf> products{};
  };
  Parameters(tensor::MeshCoordinates coordinates, Options options)
      : coordinates_(std::move(coordinates)), options_(std::move(options)) {}

  /// Starts the next model: everything declared after the call belongs to it. Stages, treatment and products are taken
  /// from `options`, and options() returns these from then on.
  /// Errors ("model"): a name that another model has; another dtype, device or seed than the earlier models.
  void begin_model(Options options);

  /// Declares a parameter and makes its local part, if this rank holds one. `name` is the name within the model.
  /// Wrappers of products (Options::products) may include the name of the model, because they derive names from
  /// weight.name.
  /// Errors ("model"): a name that is taken.
  Parameter& add(const std::string& name, tensor::ShardSpec spec, Init init, bool decay);
  /// Declares a buffer and makes its local part, zeros of `dtype`, if this rank holds it. A Redeclaration affects it as
  /// it affects add().
  /// Errors ("model"): a name that is taken.
  Buffer& buffer(const std::string& name, tensor::ShardSpec spec, at::ScalarType dtype,
                 BufferUse use = BufferUse::Model);
  /// While an object of this class exists, add() returns the existing parameters. It serves a second set of layers over
  /// the same parameters, with a layout that stores them in the same way.
  /// Errors of add(): an unknown name; a spec of another shape, or one that splits the parameter in another way.
  class Redeclaration {
   public:
    explicit Redeclaration(Parameters& parameters) : parameters_(parameters) { parameters_.redeclares_ = true; }
    ~Redeclaration() { parameters_.redeclares_ = false; }
    Redeclaration(const Redeclaration&) = delete;
    Redeclaration& operator=(const Redeclaration&) = delete;

   private:
    Parameters& parameters_;
  };
  /// Declares a leaf of a LibTorch module with its values, whole on every rank. A leaf that is passed several times (a
  /// tied weight) is declared once. Its dtype may differ from the dtype of the options; a chunk store stores it in its
  /// own. A leaf that does not require a gradient is frozen. A leaf with two or more dimensions counts as a hidden
  /// matrix; the caller clears Parameter::hidden_matrix for a table or a head.
  /// Errors ("model"): a name that is taken; a tensor that is not a floating-point leaf.
  void adopt(const std::string& name, const at::Tensor& leaf, bool decay);
  /// Stores a frozen parameter in another form from here on: its value becomes a tensor of FrozenForm::dtype() and
  /// sizes(), with its initial values unless it is without memory. A stack has one form for all of its matrices, and a
  /// value with their number before these sizes. Specs, and sizes that count elements, stay those of the values.
  /// Wrappers of products call it (nn/frozen_product.h). All ranks must, with forms of one kind.
  /// Errors ("model"): a parameter that trains, or that checkpoints save; an unknown one.
  void store_as(const Parameter& parameter, std::shared_ptr<const FrozenForm> form);
  /// Returns the form in which a parameter is stored; null = its values, in the dtype of the options.
  std::shared_ptr<const FrozenForm> form_of(const Parameter& parameter) const;
  /// Returns the dtype in which a parameter is stored: that of its form or of the options. The dtype of the value of an
  /// adopted leaf may differ until a chunk store has it.
  at::ScalarType stored_dtype(const Parameter& parameter) const;
  /// Writes the initial values of a parameter that this rank holds to `out`, which has its local shape and any dtype.
  /// They depend on own_name(), so models of one shape start from the same values. `seed`: none = that of the options.
  /// Of a parameter whose form encodes numbers (store_as()) it writes the codes of these values. The whole parameter is
  /// drawn for that. It writes zeros if only a folder has the codes.
  void draw(const Parameter& parameter, const at::Tensor& out, std::optional<uint64_t> seed = {}) const;
  /// Returns the parameter of that name, which includes the name of the model. Errors ("model"): unknown name.
  Parameter& at(const std::string& name);
  const tensor::MeshCoordinates& coordinates() const { return coordinates_; }
  const Options& options() const { return options_; }
  /// Returns `product` as wrapped by options().products.
  std::shared_ptr<const Product> product_for(const Parameter& weight, std::shared_ptr<const Product> product);
  /// Returns the product of a layer between blocks, that of one process as adapters wrap it, and marks its weight as
  /// such.
  std::shared_ptr<const Product> product_between_blocks(Parameter& weight);
  /// Returns the name of a weight on this rank whose product works without gradients only (Product::has_backward);
  /// empty = none.
  const std::string& forward_only() const { return forward_only_; }
  /// The queue to which the linear layers of this model add weight gradients that can wait.
  DeferredGradients& deferred() { return deferred_; }

  /// Iterates over the parameters that this rank holds.
  auto begin() { return Held<Parameter>{here_.begin()}; }
  auto end() { return Held<Parameter>{here_.end()}; }
  auto begin() const { return Held<const Parameter>{here_.begin()}; }
  auto end() const { return Held<const Parameter>{here_.end()}; }
  size_t size() const { return here_.size(); }
  /// All parameters of the models, also those that other stages hold.
  const std::deque<Parameter>& declared() const { return list_; }
  /// All buffers of the models. `value` is undefined if another stage holds the buffer.
  std::deque<Buffer>& buffers() { return buffers_; }
  const std::deque<Buffer>& buffers() const { return buffers_; }
  /// Returns the number of logical elements, which is the size of the models under every layout.
  int64_t numel() const;
  /// Returns the number of logical elements that train, of the parameters of all stages.
  int64_t trained_numel() const;

 private:
  template <class T>
  struct Held {
    std::vector<Parameter*>::const_iterator at;
    T& operator*() const { return **at; }
    Held& operator++() {
      ++at;
      return *this;
    }
    bool operator==(const Held&) const = default;
  };

  /// Returns the full name of a parameter or buffer declared as `name`.
  std::string full_name(const std::string& name) const;
  void require_new(const std::string& name) const;
  /// Sets the stages of a tensor whose name is set. Returns true if this rank holds it.
  bool find_stages(Parameter& tensor) const;

  tensor::MeshCoordinates coordinates_;
  Options options_;
  std::vector<std::string> models_before_;   // names of the models before the current one
  bool redeclares_ = false, wraps_ = false;  // wraps_: inside product_for()
  std::string forward_only_;
  DeferredGradients deferred_;
  std::deque<Parameter> list_;
  std::deque<Buffer> buffers_;
  std::vector<Parameter*> here_;
  std::map<const Parameter*, std::shared_ptr<const FrozenForm>> forms_;
};

}  // namespace colossal::nn
