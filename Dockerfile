FROM python:3.11-slim
WORKDIR /app
COPY requirements.lock ./
RUN pip install --no-cache-dir -r requirements.lock
COPY . .
RUN pip install --no-cache-dir --no-deps . && useradd --system --home /data --create-home verbatim
USER verbatim
WORKDIR /data
EXPOSE 8080
CMD ["verbatim", "serve"]
