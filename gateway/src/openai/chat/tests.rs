mod grammars;
mod parameters;
mod streams;
mod structure;
mod tools;
